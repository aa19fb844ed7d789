-- bank.refusals: a request is decided once. If a request ever has two records, the greatest offset wins.
INSERT INTO bank.refusals AS stored (payer, transfer, payee, amount, reason, topic, partition, "offset")
SELECT DISTINCT ON (payer, transfer) payer, transfer, payee, amount, reason, topic, partition, "offset"
FROM :stage AS stage
ORDER BY payer, transfer, "offset" DESC
ON CONFLICT (payer, transfer) DO UPDATE
SET payee     = excluded.payee,
    amount    = excluded.amount,
    reason    = excluded.reason,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
