-- trades.current: a row is the staged record with the greatest (version, offset) of its trade.
INSERT INTO trades.current AS stored
      (trade_id, version, value, risk_type, region, trade_desk, traded_at, topic, partition, "offset")
SELECT DISTINCT ON (trade_id COLLATE "C")
       trade_id, version, value * 0.000001, risk_type, region, trade_desk,
       timestamptz 'epoch' + traded_at * interval '1 microsecond', topic, partition, "offset"
FROM :stage AS stage
ORDER BY trade_id COLLATE "C", version DESC, "offset" DESC
ON CONFLICT (trade_id) DO UPDATE
SET version    = excluded.version,
    value      = excluded.value,
    risk_type  = excluded.risk_type,
    region     = excluded.region,
    trade_desk = excluded.trade_desk,
    traded_at  = excluded.traded_at,
    topic      = excluded.topic,
    partition  = excluded.partition,
    "offset"   = excluded."offset"
WHERE (excluded.version, excluded."offset") > (stored.version, stored."offset");
