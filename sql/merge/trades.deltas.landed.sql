-- trades.landed: the latencies of a batch, for messages within an hour of the commit. Any other message comes from a replay or
-- a wrong clock. Rows are deleted after a day.
WITH forgotten AS (
    DELETE FROM trades.landed WHERE landed_at < now() - interval '1 day'
)
INSERT INTO trades.landed (landed_at, sent_at, messages)
SELECT way.landed_at, way.sent_at, messages
FROM (
    SELECT date_trunc('milliseconds', landing.at) AS landed_at,
           timestamptz 'epoch' + stage.sent_at * interval '1 microsecond' AS sent_at, messages
    FROM :stage AS stage, (SELECT clock_timestamp() AS at OFFSET 0) AS landing
) AS way
WHERE abs(extract(epoch FROM landed_at - sent_at)) < 3600
ORDER BY sent_at;
