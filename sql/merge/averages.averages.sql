-- averages.averages: a row per name and window. If a window ever has two records, the greatest offset wins, in any order of
-- staging.
INSERT INTO averages.averages AS stored (name, window_end, average, numbers, late, topic, partition, "offset")
SELECT DISTINCT ON (name, window_end) name, window_end, average, numbers, late, topic, partition, "offset"
FROM :stage AS stage
ORDER BY name, window_end, "offset" DESC
ON CONFLICT (name, window_end) DO UPDATE
SET average   = excluded.average,
    numbers   = excluded.numbers,
    late      = excluded.late,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
