-- Failures that were injected on purpose (ONEFOLD_FAIL_*_PCT), so that whoever looks at the tables knows what they have
-- been through. Empty where nobody ever asked for any.
CREATE TABLE IF NOT EXISTS onefold.injected (
    stage    text        NOT NULL PRIMARY KEY,  -- state, map or reduce
    percent  numeric     NOT NULL,              -- of the batches, as last configured
    failures bigint      NOT NULL DEFAULT 0,
    last_at  timestamptz                        -- of the last failure
);
