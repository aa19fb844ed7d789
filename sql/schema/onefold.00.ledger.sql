-- What the engine itself keeps, the same for every domain. (onefold.migration is made by the migrator.)
CREATE SCHEMA IF NOT EXISTS onefold;

-- The truth about what has been landed: for each partition the offset that comes next. It moves only in the
-- transaction that lands the records, by a compare-and-swap.
CREATE TABLE IF NOT EXISTS onefold.ledger (
    sink             text        NOT NULL,  -- the domain
    topic            text        NOT NULL,
    partition        integer     NOT NULL,
    next_offset      bigint      NOT NULL CHECK (next_offset >= 0),
    topic_id         text        NOT NULL,  -- Kafka's id of the topic: a topic made anew under the old name has another
    last_offset      bigint,                -- the last record landed, to be recognised at the next start
    last_fingerprint bigint,
    writer           text        NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (sink, topic, partition),
    CHECK (last_offset < next_offset),
    CHECK ((last_offset IS NULL) = (last_fingerprint IS NULL))
);

-- Records of output topics that could not be landed, with the reason. Never silently dropped.
CREATE TABLE IF NOT EXISTS onefold.rejected (
    sink        text        NOT NULL,
    topic       text        NOT NULL,
    partition   integer     NOT NULL,
    "offset"    bigint      NOT NULL,
    reason      text        NOT NULL,
    value       bytea,
    rejected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, topic, partition, "offset")
);

-- Where Spark's executors put the rows of large batches until one transaction merges them. Nothing here is of
-- value: tables of a sink that is gone are dropped by the next one.
CREATE SCHEMA IF NOT EXISTS onefold_stage;

-- Whoever wants to look may become a member of onefold_reader. A database user who may not create roles goes without.
DO $$
BEGIN
    CREATE ROLE onefold_reader NOLOGIN;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN RAISE NOTICE 'onefold_reader was not created: no right to create roles';
END
$$;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'onefold_reader') THEN
        GRANT USAGE ON SCHEMA onefold TO onefold_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA onefold TO onefold_reader;
        -- and all that later files create:
        ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO onefold_reader;
        ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO onefold_reader;
    END IF;
END
$$;
