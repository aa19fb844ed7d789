-- The changes of trades, unreduced. Most trades change once in a batch, so selecting the last change here would cost more than
-- in the merge.
SELECT trade_id, version, value, risk_type, region, trade_desk, traded_at, topic, partition, offset
FROM :batch
