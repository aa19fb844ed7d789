-- onefold.rejected: each output record that could not be landed, once, with the first reason given.
INSERT INTO onefold.rejected (sink, topic, partition, "offset", reason, value)
SELECT sink, topic, partition, "offset", reason, value
FROM :stage AS stage
ORDER BY sink, topic, partition, "offset"
ON CONFLICT (sink, topic, partition, "offset") DO NOTHING;
