-- trades.risk: each staged row is the addition of a batch to a level. An addition is not idempotent. The compare-and-swap of
-- the batch's offsets in the same transaction ensures that each batch is added once. Rows are sorted, so that two sinks with
-- different partitions never deadlock.
INSERT INTO trades.risk AS stored (risk_type, region, trade_desk, value, trades, topic, partition, "offset")
SELECT risk_type, region, trade_desk, value * 0.000001, trades, topic, partition, "offset"
FROM :stage AS stage
ORDER BY risk_type COLLATE "C", region COLLATE "C", trade_desk COLLATE "C"
ON CONFLICT (risk_type, region, trade_desk) DO UPDATE
SET value     = stored.value + excluded.value,
    trades    = stored.trades + excluded.trades,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset";
