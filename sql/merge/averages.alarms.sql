-- averages.alarms: a counter. An addition is not idempotent. The compare-and-swap of the batch's offsets in the same
-- transaction ensures that each record is added once. The names of a batch are sorted, so that two sinks never deadlock.
INSERT INTO averages.alarms AS stored (name, alarms, topic, partition, "offset")
SELECT name, sum(alarms)::bigint, min(topic), min(partition), max("offset")
FROM :stage AS stage
GROUP BY name
ORDER BY name COLLATE "C"
ON CONFLICT (name) DO UPDATE
SET alarms    = stored.alarms + excluded.alarms,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset";
