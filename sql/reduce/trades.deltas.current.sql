-- Every trade that changed, as it is now. Most trades change once in a batch, so that looking for the last change of
-- each costs more here than it saves: the merge does it.
SELECT trade_id, version, value, risk_type, region, trade_desk, traded_at, topic, partition, offset
FROM :batch
