-- runner.tendency: a row is the staged record with the greatest (sequence_id, offset) of its user.
INSERT INTO runner.tendency AS stored
      (user_id, sequence_id, timestamp_utc, current, previous, topic, partition, "offset")
SELECT DISTINCT ON (user_id)
       user_id, sequence_id, timestamp_utc, current, previous, topic, partition, "offset"
FROM :stage AS stage
ORDER BY user_id, sequence_id DESC, "offset" DESC
ON CONFLICT (user_id) DO UPDATE
SET sequence_id   = excluded.sequence_id,
    timestamp_utc = excluded.timestamp_utc,
    current       = excluded.current,
    previous      = excluded.previous,
    topic         = excluded.topic,
    partition     = excluded.partition,
    "offset"      = excluded."offset"
WHERE (excluded.sequence_id, excluded."offset") > (stored.sequence_id, stored."offset");
