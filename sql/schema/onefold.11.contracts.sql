-- With which schemas the records were written that a sink has landed, or was ready to land: a contract that avro/ has forgotten is
-- noticed before records of it are taken for none.
CREATE TABLE IF NOT EXISTS onefold.contract (
    sink   text        NOT NULL,
    topic  text        NOT NULL,
    header bytea       NOT NULL,  -- the ten bytes that open each value: marker and fingerprint
    schema text        NOT NULL,  -- as avro/ had it
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (sink, topic, header)
);
