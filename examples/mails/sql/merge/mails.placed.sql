-- An order is told once and never changes: what is there already is the same row.
INSERT INTO mails.placed (id, cents, topic, partition, "offset")
SELECT id, cents, topic, partition, "offset"
FROM :stage AS stage
ON CONFLICT (id) DO NOTHING;
