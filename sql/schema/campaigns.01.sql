-- Campaigns: the wide row per campaign, and the same as one row per send. Dates are UTC.
CREATE SCHEMA IF NOT EXISTS campaigns;

-- What the processor says, as it came. The total is never written by anybody: Postgres computes it from the parts.
CREATE TABLE IF NOT EXISTS campaigns.totals (
    id        bigint    NOT NULL PRIMARY KEY,
    email     text      NOT NULL,
    subject   text      NOT NULL,
    date_1    timestamp,
    sent_1    bigint    CHECK (sent_1 > 0),
    date_2    timestamp,
    sent_2    bigint    CHECK (sent_2 > 0),
    sent_rest bigint    CHECK (sent_rest > 0),  -- mails of the third send and later ones
    sends     bigint    NOT NULL CHECK (sends >= 0),
    changes   bigint    NOT NULL CHECK (changes > 0),
    computed  bigint    NOT NULL
        GENERATED ALWAYS AS (coalesce(sent_1, 0) + coalesce(sent_2, 0) + coalesce(sent_rest, 0)) STORED,
    topic     text      NOT NULL,
    partition integer   NOT NULL,
    "offset"  bigint    NOT NULL,
    CHECK ((date_1 IS NULL) = (sent_1 IS NULL) AND (date_2 IS NULL) = (sent_2 IS NULL)),
    CHECK ((sent_1 IS NOT NULL) = (sends >= 1)),
    CHECK ((sent_2 IS NOT NULL) = (sends >= 2)),
    CHECK ((sent_rest IS NOT NULL) = (sends >= 3)),
    CHECK (date_1 < date_2)                     -- in order of date, never of arrival
);

CREATE TABLE IF NOT EXISTS campaigns.sends (
    id        bigint    NOT NULL,
    date      timestamp NOT NULL,
    sent      bigint    NOT NULL CHECK (sent >= 0),  -- 0: withdrawn
    email     text      NOT NULL,
    subject   text      NOT NULL,
    version   bigint    NOT NULL CHECK (version >= 0),
    topic     text      NOT NULL,
    partition integer   NOT NULL,
    "offset"  bigint    NOT NULL,
    PRIMARY KEY (id, date)
);

-- The same totals by another road: campaigns.totals must agree with this, row for row.
CREATE OR REPLACE VIEW campaigns.totals_from_sends AS
SELECT id,
       (array_agg(email ORDER BY sent > 0 DESC, date DESC))[1]   AS email,
       (array_agg(subject ORDER BY sent > 0 DESC, date DESC))[1] AS subject,
       count(*) FILTER (WHERE sent > 0)                          AS sends,
       sum(sent)::bigint                                         AS computed
FROM campaigns.sends
GROUP BY id;
