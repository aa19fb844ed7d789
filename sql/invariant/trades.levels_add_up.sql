-- At every moment, each level of the hierarchy adds up to the total. The query returns the levels with a different sum.
SELECT level.name, level.value, level.trades, total.value AS total_value, total.trades AS total_trades
FROM (
    SELECT concat_ws(', ', CASE WHEN risk_type IS NOT NULL THEN 'risk type' END,
                           CASE WHEN region IS NOT NULL THEN 'region' END,
                           CASE WHEN trade_desk IS NOT NULL THEN 'trade desk' END) AS name,
           sum(value) AS value, sum(trades) AS trades
    FROM trades.risk
    GROUP BY risk_type IS NULL, region IS NULL, trade_desk IS NULL, name
) AS level
JOIN trades.risk AS total ON (total.risk_type, total.region, total.trade_desk) IS NULL
WHERE (level.value, level.trades) IS DISTINCT FROM (total.value, total.trades)
ORDER BY level.name;
