-- Rows that are replaced again and again, by nearly every batch: room to change them in place. Without it each change is
-- a new row elsewhere and a new entry in the index. It holds for pages that are written from now on; VACUUM FULL brings
-- older ones over.
ALTER TABLE runner.stats SET (fillfactor = 50);
ALTER TABLE runner.tendency SET (fillfactor = 50);
