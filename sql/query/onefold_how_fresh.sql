-- How far each sink is, partition by partition: what comes next, who wrote last, and how long ago.
SELECT sink, topic, partition, next_offset, writer,
       date_trunc('milliseconds', clock_timestamp() - updated_at) AS ago
FROM onefold.ledger
ORDER BY sink, topic, partition;
