-- The ten longest runs, with their pace in minutes per kilometre and the runner's tendency.
SELECT stats.user_id,
       stats.run_id,
       stats.total_meters,
       round(stats.total_time_ms / 60000.0, 1)                                                    AS minutes,
       round(stats.total_time_ms / 60000.0 / nullif(stats.total_meters, 0) * 1000, 2)             AS minutes_per_km,
       tendency.current                                                                           AS now,
       tendency.previous                                                                          AS before
FROM runner.stats AS stats
JOIN runner.tendency AS tendency USING (user_id)
ORDER BY stats.total_meters DESC, stats.user_id, stats.run_id
LIMIT 10;
