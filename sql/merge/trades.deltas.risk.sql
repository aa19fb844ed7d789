-- trades.risk: each staged row is what one batch adds to a level. An addition is not idempotent: that it happens once is
-- owed to the compare-and-swap of the batch's offsets in this very transaction. Rows are taken in one order, so that
-- two sinks that land different partitions at the same time wait for each other and never both.
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
