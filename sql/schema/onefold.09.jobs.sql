-- Jobs of pipelines: what is pending, and what is done. Every write names the increment that it saw, so that of two workers
-- at one job the later one to write finds out; and whether somebody has timed out is judged by this database's clock alone.
CREATE TABLE IF NOT EXISTS onefold.pending (
    queue     text        NOT NULL,  -- the topic
    log_id    text        NOT NULL,  -- jobs of one log are done in the order of (segment, entry)
    segment   bigint      NOT NULL,
    entry     bigint      NOT NULL,
    value     jsonb       NOT NULL,  -- the record of the job
    created   timestamptz NOT NULL DEFAULT clock_timestamp(),
    modified  timestamptz NOT NULL DEFAULT clock_timestamp(),
    retries   integer     NOT NULL DEFAULT 0,      -- how often it was deferred
    active    boolean     NOT NULL DEFAULT false,  -- a worker has claimed it, and has not given it up
    increment bigint      NOT NULL DEFAULT 0,      -- grows with every claim and every checkpoint
    state     jsonb,                               -- the newest checkpoint; NULL before the first
    reason    text        NOT NULL DEFAULT '',     -- why it was deferred the last time
    PRIMARY KEY (queue, log_id, segment, entry)
);

CREATE TABLE IF NOT EXISTS onefold.done (
    queue   text        NOT NULL,
    log_id  text        NOT NULL,
    segment bigint      NOT NULL,
    entry   bigint      NOT NULL,
    result  jsonb,                   -- what the effect says came of it
    retries integer     NOT NULL,    -- how often it had been deferred
    created timestamptz NOT NULL,    -- when it became pending
    done_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue, log_id, segment, entry)
);

-- How many were done lately, and how often those that are done had been deferred, is asked every second where somebody looks.
CREATE INDEX IF NOT EXISTS done_at ON onefold.done (queue, done_at) INCLUDE (retries);
