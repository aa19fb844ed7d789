-- An order has one row that never changes: an existing row is the same row.
INSERT INTO mails.placed (id, cents, topic, partition, "offset")
SELECT id, cents, topic, partition, "offset"
FROM :stage AS stage
ON CONFLICT (id) DO NOTHING;
