-- A row is the record with the most changes of its customer, in whatever order records are
-- staged, and however often. Nothing is added up here, so nothing can count twice.
INSERT INTO pipename.totals AS held
      (customer, orders, placed_cents, paid_cents, changes, topic, partition, "offset")
SELECT DISTINCT ON (customer)
       customer, orders, placed_cents, paid_cents, changes, topic, partition, "offset"
FROM :stage AS stage
ORDER BY customer, changes DESC, "offset" DESC
ON CONFLICT (customer) DO UPDATE
SET orders       = excluded.orders,
    placed_cents = excluded.placed_cents,
    paid_cents   = excluded.paid_cents,
    changes      = excluded.changes,
    topic        = excluded.topic,
    partition    = excluded.partition,
    "offset"     = excluded."offset"
WHERE (excluded.changes, excluded."offset") > (held.changes, held."offset");
