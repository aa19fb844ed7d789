-- What a person would rather look at than read; the dashboard draws a bar for each row.
CREATE OR REPLACE VIEW runner.chart_1_longest_runs AS
SELECT format('runner %s, run %s', longest.user_id, longest.run_id) AS run,
       longest.total_meters                                         AS meters,
       round(longest.total_time_ms / 60000.0 / nullif(longest.total_meters, 0) * 1000, 2) AS minutes_per_km,
       tendency.current                                             AS now
FROM (SELECT user_id, run_id, total_meters, total_time_ms
      FROM runner.stats
      ORDER BY total_meters DESC, user_id, run_id
      LIMIT 10) AS longest
LEFT JOIN runner.tendency USING (user_id)
ORDER BY longest.total_meters DESC, longest.user_id, longest.run_id;
COMMENT ON VIEW runner.chart_1_longest_runs IS 'The longest runs';

CREATE OR REPLACE VIEW runner.chart_2_tendency AS
SELECT current AS what_they_are_told, count(*) AS runners, count(*) FILTER (WHERE previous = current) AS as_before
FROM runner.tendency
GROUP BY current
ORDER BY runners DESC, current;
COMMENT ON VIEW runner.chart_2_tendency IS 'How the runners are doing';
