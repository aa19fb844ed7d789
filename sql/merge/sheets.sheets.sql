-- sheets.sheets: all records of a sheet are in the same partition. The greatest offset has the present state of the sheet.
INSERT INTO sheets.sheets AS stored
      (sheet_id, entries, edits, asked, finished, root, topic, partition, "offset")
SELECT DISTINCT ON (sheet_id)
       sheet_id, entries, edits, asked, finished, root, topic, partition, "offset"
FROM :stage AS stage
ORDER BY sheet_id, "offset" DESC
ON CONFLICT (sheet_id) DO UPDATE
SET entries   = excluded.entries,
    edits     = excluded.edits,
    asked     = excluded.asked,
    finished  = excluded.finished,
    root      = excluded.root,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE excluded."offset" > stored."offset";
