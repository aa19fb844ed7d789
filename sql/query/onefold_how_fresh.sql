-- The progress of each sink in each partition: the next offset, the last writer, and the time since the last write.
SELECT sink, topic, partition, next_offset, writer,
       date_trunc('milliseconds', clock_timestamp() - updated_at) AS ago
FROM onefold.ledger
ORDER BY sink, topic, partition;
