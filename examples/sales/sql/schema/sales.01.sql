-- A row for every minute in which a shop has sold something.
CREATE SCHEMA IF NOT EXISTS sales;

CREATE TABLE sales.minutes (
    shop       text          NOT NULL,
    minute     timestamptz   NOT NULL,
    orders     bigint        NOT NULL,
    cents      bigint        NOT NULL,
    mean_cents numeric(18,2) NOT NULL,
    topic      text          NOT NULL,
    partition  integer       NOT NULL,
    "offset"   bigint        NOT NULL,
    PRIMARY KEY (shop, minute)
);
