-- What the judge said last about each domain, for those who look: `onefold verify` writes it, the dashboard shows it.
-- It is a note and no proof: only running `onefold verify` again proves anything.
CREATE TABLE IF NOT EXISTS onefold.verdict (
    domain    text        NOT NULL PRIMARY KEY,
    outcome   text        NOT NULL CHECK (outcome IN ('valid', 'invalid', 'unknown')),
    reason    text        NOT NULL,   -- one sentence
    counts    jsonb       NOT NULL,   -- records read, accepted, ignored ...
    offsets   jsonb       NOT NULL,   -- {topic: {partition: offset}}: up to where every topic was read
    judged_at timestamptz NOT NULL
);

-- Who owns the tables may put on the reader's rights, and with them lose its own: since PostgreSQL 16 the one who
-- made a role is no longer allowed to by itself.
DO $$
BEGIN
    EXECUTE format('GRANT onefold_reader TO %I', current_user);
EXCEPTION
    WHEN undefined_object OR insufficient_privilege OR invalid_grant_operation THEN
        RAISE NOTICE 'onefold_reader was not granted to %', current_user;
END
$$;
