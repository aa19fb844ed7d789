-- A row for every order, however often it came.
CREATE SCHEMA IF NOT EXISTS mails;

CREATE TABLE mails.placed (
    id        text    NOT NULL PRIMARY KEY,
    cents     bigint  NOT NULL,
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL
);
