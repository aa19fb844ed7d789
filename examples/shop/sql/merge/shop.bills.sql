INSERT INTO shop.bills AS held (number, cents, paid, first, changes, topic, partition, "offset")
SELECT DISTINCT ON (number) number, cents, paid, first, changes, topic, partition, "offset"
FROM :stage AS stage
ORDER BY number, changes DESC, "offset" DESC
ON CONFLICT (number) DO UPDATE
SET cents = excluded.cents, paid = excluded.paid, first = excluded.first, changes = excluded.changes,
    topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset"
WHERE (excluded.changes, excluded."offset") > (held.changes, held."offset");
