-- sheets.refusals: a client may repeat a refused request. The greatest offset wins.
INSERT INTO sheets.refusals AS stored
      (object_id, sheet_id, reason, topic, partition, "offset")
SELECT DISTINCT ON (object_id)
       object_id, sheet_id, reason, topic, partition, "offset"
FROM :stage AS stage
ORDER BY object_id, "offset" DESC
ON CONFLICT (object_id) DO UPDATE
SET sheet_id  = excluded.sheet_id,
    reason    = excluded.reason,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
