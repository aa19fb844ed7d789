-- A ledger entry changes three tables: the entries, the state of its account, and the progress of its transfer.
WITH lines AS (
    INSERT INTO bank.entries AS stored
          (account, entry, kind, payer, transfer, payee, amount, balance, opened, closed, topic, partition, "offset")
    SELECT DISTINCT ON (account, entry)
           account, entry, kind, payer, transfer, payee, amount, balance, opened, closed, topic, partition, "offset"
    FROM :stage AS stage
    ORDER BY account, entry, "offset" DESC
    ON CONFLICT (account, entry) DO UPDATE
    SET kind = excluded.kind, payer = excluded.payer, transfer = excluded.transfer, payee = excluded.payee,
        amount = excluded.amount, balance = excluded.balance, opened = excluded.opened, closed = excluded.closed,
        topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset"
    WHERE excluded."offset" > stored."offset"
), standing AS (
    INSERT INTO bank.accounts AS stored (account, entries, balance, opened, closed, topic, partition, "offset")
    SELECT DISTINCT ON (account) account, entry, balance, opened, closed, topic, partition, "offset"
    FROM :stage AS stage
    ORDER BY account, entry DESC, "offset" DESC
    ON CONFLICT (account) DO UPDATE
    SET entries = excluded.entries, balance = excluded.balance, opened = excluded.opened, closed = excluded.closed,
        topic = excluded.topic, partition = excluded.partition, "offset" = excluded."offset"
    WHERE (excluded.entries, excluded."offset") > (stored.entries, stored."offset")
)
INSERT INTO bank.transfers AS stored
      (payer, transfer, payee, withdrawn, deposited, returned, topic, partition, "offset")
SELECT payer, transfer, min(payee),
       -min(amount) FILTER (WHERE kind = 'withdraw'),
       min(amount) FILTER (WHERE kind = 'deposit'),
       min(amount) FILTER (WHERE kind = 'return'),
       min(topic), max(partition), max("offset") FILTER (WHERE partition = last_partition)
FROM (SELECT *, max(partition) OVER (PARTITION BY payer, transfer) AS last_partition FROM :stage AS stage) AS stage
WHERE transfer IS NOT NULL
GROUP BY payer, transfer
ON CONFLICT (payer, transfer) DO UPDATE
SET withdrawn = coalesce(excluded.withdrawn, stored.withdrawn),
    deposited = coalesce(excluded.deposited, stored.deposited),
    returned  = coalesce(excluded.returned, stored.returned),
    topic     = excluded.topic,
    partition = CASE WHEN (excluded.partition, excluded."offset") > (stored.partition, stored."offset")
                     THEN excluded.partition ELSE stored.partition END,
    "offset"  = CASE WHEN (excluded.partition, excluded."offset") > (stored.partition, stored."offset")
                     THEN excluded."offset" ELSE stored."offset" END;
