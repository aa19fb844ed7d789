-- One row per customer. A file that was applied is never changed: a change is a new file.
CREATE SCHEMA IF NOT EXISTS pipename;

CREATE TABLE pipename.totals (
    customer     text    NOT NULL PRIMARY KEY,
    orders       bigint  NOT NULL CHECK (orders >= 0),
    placed_cents bigint  NOT NULL CHECK (placed_cents >= 0),
    paid_cents   bigint  NOT NULL CHECK (paid_cents >= 0),
    changes      bigint  NOT NULL CHECK (changes > 0),
    -- Never written by anybody: Postgres computes it from the parts.
    total_cents  bigint  NOT NULL GENERATED ALWAYS AS (placed_cents + paid_cents) STORED,
    -- The output record that the row came from.
    topic        text    NOT NULL,
    partition    integer NOT NULL,
    "offset"     bigint  NOT NULL
) WITH (fillfactor = 50);  -- a row is replaced again and again: room to do so in place
