CREATE SCHEMA IF NOT EXISTS shop;

CREATE TABLE shop.bills (
    number    bigint  NOT NULL PRIMARY KEY,
    cents     bigint,
    paid      bigint  NOT NULL,
    first     text    NOT NULL,
    changes   bigint  NOT NULL,
    topic     text    NOT NULL,
    partition integer NOT NULL,
    "offset"  bigint  NOT NULL
);
