-- runner.messages: a row per accepted update. If an update ever has two records, the greatest offset wins, in any order of
-- staging.
INSERT INTO runner.messages AS stored
      (user_id, sequence_id, timestamp_utc, run_id, distance_meters, topic, partition, "offset")
SELECT DISTINCT ON (user_id, sequence_id)
       user_id, sequence_id, timestamp_utc, run_id, distance_meters, topic, partition, "offset"
FROM :stage AS stage
ORDER BY user_id, sequence_id, "offset" DESC
ON CONFLICT (user_id, sequence_id) DO UPDATE
SET timestamp_utc   = excluded.timestamp_utc,
    run_id          = excluded.run_id,
    distance_meters = excluded.distance_meters,
    topic           = excluded.topic,
    partition       = excluded.partition,
    "offset"        = excluded."offset"
WHERE excluded."offset" > stored."offset";
