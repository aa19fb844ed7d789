-- sheets.entries: an entry is written once. If an entry ever has two records, the greatest offset wins.
INSERT INTO sheets.entries AS stored
      (sheet_id, entry, segment, kind, cell, row, col, number, text, formula, object_id, topic, partition, "offset")
SELECT DISTINCT ON (sheet_id, entry)
       sheet_id, entry, segment, kind, cell, row, col, number, text, formula, object_id, topic, partition, "offset"
FROM :stage AS stage
ORDER BY sheet_id, entry, "offset" DESC
ON CONFLICT (sheet_id, entry) DO UPDATE
SET segment   = excluded.segment,
    kind      = excluded.kind,
    cell      = excluded.cell,
    row       = excluded.row,
    col       = excluded.col,
    number    = excluded.number,
    text      = excluded.text,
    formula   = excluded.formula,
    object_id = excluded.object_id,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
