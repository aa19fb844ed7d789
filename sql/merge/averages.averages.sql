-- averages.averages: every minute once. Should one ever be told twice, the record with the greatest offset stands, in
-- whatever order the two are staged.
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
