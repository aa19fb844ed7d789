-- Averages: one row for each minute that is told, and a counter of the minutes that had too many numbers.
CREATE SCHEMA IF NOT EXISTS averages;

CREATE TABLE IF NOT EXISTS averages.averages (
    name       text          NOT NULL,
    window_end timestamptz   NOT NULL,
    average    numeric(18,6) NOT NULL,
    numbers    bigint        NOT NULL CHECK (numbers > 0),
    late       bigint        NOT NULL CHECK (late >= 0),
    topic      text          NOT NULL,
    partition  integer       NOT NULL,
    "offset"   bigint        NOT NULL,
    PRIMARY KEY (name, window_end)
);

CREATE TABLE IF NOT EXISTS averages.alarms (
    name      text    NOT NULL PRIMARY KEY,
    alarms    bigint  NOT NULL CHECK (alarms > 0),
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL
);
