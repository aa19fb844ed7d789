-- Which batch landed which records: the ledger has the last one of each partition, and here are those before it. Written in the
-- transaction that moves the ledger, for partitions of which the batch had a record; the sink deletes the oldest rows by itself.
-- It is for those who look. Nothing is landed, or left out, because of what is here.
CREATE TABLE IF NOT EXISTS onefold.batch (
    sink         text        NOT NULL,
    topic        text        NOT NULL,
    partition    integer     NOT NULL,
    topic_id     text        NOT NULL,  -- a topic made anew under the old name has another: its offsets mean other records
    first_offset bigint      NOT NULL,
    next_offset  bigint      NOT NULL,
    records      bigint,                -- NULL: not counted, as where records were added up before they came here
    oldest_ms    bigint,                -- Kafka's timestamp of the oldest of them, in milliseconds since 1970; NULL: not known
    writer       text        NOT NULL,
    landed_at    timestamptz NOT NULL,  -- when all was merged and only COMMIT was left, by this server's clock
    PRIMARY KEY (sink, topic, partition, topic_id, first_offset),
    CHECK (first_offset < next_offset)
);
-- For what landed lately, and for what is the oldest.
CREATE INDEX IF NOT EXISTS batch_landed_at ON onefold.batch (sink, landed_at);
