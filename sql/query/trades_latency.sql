-- Latency from produce to commit over the last minute, in seconds: mean, median, 99th percentile and maximum.
WITH way AS (
    SELECT extract(epoch FROM landed_at - sent_at) AS seconds, messages,
           sum(messages) OVER (ORDER BY landed_at - sent_at) AS up_to,
           sum(messages) OVER ()                             AS messages_all
    FROM trades.landed
    WHERE landed_at > clock_timestamp() - interval '1 minute'
)
SELECT max(messages_all)                                                 AS messages,
       round(sum(seconds * messages) / sum(messages), 3)                 AS mean,
       round(min(seconds) FILTER (WHERE up_to >= 0.50 * messages_all), 3) AS p50,
       round(min(seconds) FILTER (WHERE up_to >= 0.99 * messages_all), 3) AS p99,
       round(max(seconds), 3)                                            AS worst
FROM way;
