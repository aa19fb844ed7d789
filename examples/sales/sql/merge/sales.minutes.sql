-- A minute has one row that never changes: an existing row is the same row.
INSERT INTO sales.minutes (shop, minute, orders, cents, mean_cents, topic, partition, "offset")
SELECT shop, minute, orders, cents, mean_cents, topic, partition, "offset"
FROM :stage AS stage
ON CONFLICT (shop, minute) DO NOTHING;
