-- sheets.snapshots: a snapshot is reported once. If a snapshot ever has two records, the greatest offset wins.
INSERT INTO sheets.snapshots AS stored
      (sheet_id, entry, segment, root, cells, size, chunks, shared, topic, partition, "offset")
SELECT DISTINCT ON (sheet_id, entry)
       sheet_id, entry, segment, root, cells, size, chunks, shared, topic, partition, "offset"
FROM :stage AS stage
ORDER BY sheet_id, entry, "offset" DESC
ON CONFLICT (sheet_id, entry) DO UPDATE
SET segment   = excluded.segment,
    root      = excluded.root,
    cells     = excluded.cells,
    size      = excluded.size,
    chunks    = excluded.chunks,
    shared    = excluded.shared,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
