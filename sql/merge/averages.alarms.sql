-- averages.alarms: a counter. An addition is not idempotent: that each record is added once is owed to the compare-and-swap
-- of the batch's offsets in this very transaction. The names of a batch are taken in one order, so that two sinks wait for
-- each other and never both.
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
