-- Trade risk: the current risk of every trade, and its sums at every level of the hierarchy. Both change in the same
-- transaction, so in every snapshot the leaves add up to every level, and every level to the total.
CREATE SCHEMA IF NOT EXISTS trades;

-- The newest accepted version of each trade. Ids are compared byte by byte ("C"): nobody sorts them for people, and
-- the index is the busiest of all.
CREATE TABLE IF NOT EXISTS trades.current (
    trade_id   text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint         NOT NULL,
    value      numeric(18, 6) NOT NULL,
    risk_type  text           NOT NULL,
    region     text           NOT NULL,
    trade_desk text           NOT NULL,
    traded_at  timestamptz    NOT NULL,  -- the message's own Timestamp
    topic      text           NOT NULL,
    partition  integer        NOT NULL,
    "offset"   bigint         NOT NULL
);

-- One row for every combination of the three attributes that a landed trade ever had, and for each of its sums: NULL stands for
-- all. Three NULLs are the total. A row whose trades have all moved away stays, with 0 trades and value 0.
CREATE TABLE IF NOT EXISTS trades.risk (
    risk_type  text,
    region     text,
    trade_desk text,
    value      numeric NOT NULL,
    trades     bigint  NOT NULL,
    topic      text    NOT NULL,             -- the output record that last changed the row
    partition  integer NOT NULL,
    "offset"   bigint  NOT NULL,
    UNIQUE NULLS NOT DISTINCT (risk_type, region, trade_desk)
) WITH (fillfactor = 50);                    -- a few rows, changed by every batch: room to change them in place

-- How long messages were on their way: per landed batch, how many of them say that they were made within which tenth of
-- a second. landed_at - sent_at is the latency, from the producer's clock to the commit that made them visible.
CREATE TABLE IF NOT EXISTS trades.landed (
    landed_at timestamptz NOT NULL,          -- the same for all rows of a batch
    sent_at   timestamptz NOT NULL,          -- the middle of the tenth of a second
    messages  bigint      NOT NULL CHECK (messages > 0)
);
CREATE INDEX IF NOT EXISTS landed_at ON trades.landed (landed_at);

-- What a producer that keeps its own sums says that trades.risk will hold when everything it has sent is landed: one
-- row per leaf, replaced about once a second while it produces. Nothing in the pipeline reads it.
CREATE TABLE IF NOT EXISTS trades.truth (
    risk_type  text        NOT NULL,
    region     text        NOT NULL,
    trade_desk text        NOT NULL,
    value      numeric     NOT NULL,
    trades     bigint      NOT NULL,
    told_at    timestamptz NOT NULL,
    PRIMARY KEY (risk_type, region, trade_desk)
);
