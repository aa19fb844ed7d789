-- runner.stats: a row is the staged record with the greatest (sequence_id, offset) of its run. The maximum does not depend on
-- the order or repetition of records.
INSERT INTO runner.stats AS stored
      (run_id, user_id, sequence_id, total_meters, total_time_ms, topic, partition, "offset")
SELECT DISTINCT ON (run_id, user_id)
       run_id, user_id, sequence_id, total_meters, total_time_ms, topic, partition, "offset"
FROM :stage AS stage
ORDER BY run_id, user_id, sequence_id DESC, "offset" DESC
ON CONFLICT (run_id, user_id) DO UPDATE
SET sequence_id   = excluded.sequence_id,
    total_meters  = excluded.total_meters,
    total_time_ms = excluded.total_time_ms,
    topic         = excluded.topic,
    partition     = excluded.partition,
    "offset"      = excluded."offset"
WHERE (excluded.sequence_id, excluded."offset") > (stored.sequence_id, stored."offset");
