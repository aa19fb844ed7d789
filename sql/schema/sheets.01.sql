-- Spreadsheets: the entries of their logs, how each log stands, and the snapshots that are made.
CREATE SCHEMA IF NOT EXISTS sheets;

-- Every entry of every log, for ever. Workers and readers ask for one sheet's entries from one number to another: that is the
-- primary key.
CREATE TABLE IF NOT EXISTS sheets.entries (
    sheet_id  text    NOT NULL,
    entry     bigint  NOT NULL CHECK (entry > 0),        -- counted, without a gap
    segment   bigint  NOT NULL,
    kind      text    NOT NULL CHECK (kind IN ('edit', 'import', 'snapshot')),
    cell      text,                                      -- with row and col: of an edit
    row       integer,
    col       integer,
    number    numeric(38, 9),                            -- all three null: the cell was cleared
    text      text,
    formula   text,
    object_id text,                                      -- of an import
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL,
    PRIMARY KEY (sheet_id, entry),
    CHECK ((kind = 'edit') = (cell IS NOT NULL AND row IS NOT NULL AND col IS NOT NULL)),
    CHECK (num_nonnulls(number, text, formula) <= CASE kind WHEN 'edit' THEN 1 ELSE 0 END),
    CHECK ((kind = 'import') = (object_id IS NOT NULL))
);

-- How each log stands.
CREATE TABLE IF NOT EXISTS sheets.sheets (
    sheet_id  text    NOT NULL PRIMARY KEY,
    entries   bigint  NOT NULL,
    edits     bigint  NOT NULL,                          -- of these, edits and imports
    asked     bigint  NOT NULL,                          -- the newest snapshot entry; 0: none
    finished  bigint  NOT NULL,                          -- the newest one whose snapshot is made; 0: none
    root      text,                                      -- of that snapshot
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL,
    CHECK ((finished = 0) = (root IS NULL))
);

-- The snapshots that are made; the last of a segment or before an entry is found by the primary key.
CREATE TABLE IF NOT EXISTS sheets.snapshots (
    sheet_id  text    NOT NULL,
    entry     bigint  NOT NULL CHECK (entry > 0),
    segment   bigint  NOT NULL,
    root      text    NOT NULL,
    cells     bigint  NOT NULL CHECK (cells >= 0),
    size      bigint  NOT NULL CHECK (size >= 0),        -- of its chunks, in bytes
    chunks    bigint  NOT NULL,
    shared    bigint  NOT NULL CHECK (shared BETWEEN 0 AND chunks),
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL,
    PRIMARY KEY (sheet_id, entry)
);

-- Uploads that were completed too late: their objects were discarded before.
CREATE TABLE IF NOT EXISTS sheets.refusals (
    object_id text    NOT NULL PRIMARY KEY,
    sheet_id  text    NOT NULL,
    reason    text    NOT NULL,
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL
);
