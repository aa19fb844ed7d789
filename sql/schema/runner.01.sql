-- Runners: what a run adds up to, how the runner is doing, and every accepted update.
CREATE SCHEMA IF NOT EXISTS runner;

CREATE TABLE IF NOT EXISTS runner.stats (
    run_id        bigint  NOT NULL,
    user_id       bigint  NOT NULL,
    sequence_id   bigint  NOT NULL,  -- of the update that made these numbers
    total_meters  bigint  NOT NULL CHECK (total_meters >= 0),
    total_time_ms bigint  NOT NULL CHECK (total_time_ms >= 0),
    topic         text    NOT NULL,
    partition     integer NOT NULL,
    "offset"      bigint  NOT NULL,
    PRIMARY KEY (run_id, user_id)
);

CREATE TABLE IF NOT EXISTS runner.tendency (
    user_id       bigint  NOT NULL PRIMARY KEY,
    sequence_id   bigint  NOT NULL,
    timestamp_utc bigint  NOT NULL,  -- milliseconds since 1970-01-01 UTC, by the device's clock
    current       text    NOT NULL,
    previous      text    NOT NULL,
    topic         text    NOT NULL,
    partition     integer NOT NULL,
    "offset"      bigint  NOT NULL
);

CREATE TABLE IF NOT EXISTS runner.messages (
    user_id         bigint  NOT NULL,
    sequence_id     bigint  NOT NULL,
    timestamp_utc   bigint  NOT NULL,
    run_id          bigint  NOT NULL,
    distance_meters bigint  NOT NULL CHECK (distance_meters >= 0),
    topic           text    NOT NULL,
    partition       integer NOT NULL,
    "offset"        bigint  NOT NULL,
    PRIMARY KEY (user_id, sequence_id)
);
