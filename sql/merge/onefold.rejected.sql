-- onefold.rejected: each rejected output record once, with its first reason.
INSERT INTO onefold.rejected (sink, topic, partition, "offset", reason, value)
SELECT sink, topic, partition, "offset", reason, value
FROM :stage AS stage
ORDER BY sink, topic, partition, "offset"
ON CONFLICT (sink, topic, partition, "offset") DO NOTHING;
