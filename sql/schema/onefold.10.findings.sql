-- What the judge found the last time, for those who look: {"kinds": [[kind, how many]], "first": [{"kind", "where", "key", "what",
-- "output", "source"}]}, a few of them. NULL: a verdict of before there was this column.
ALTER TABLE onefold.verdict ADD COLUMN IF NOT EXISTS findings jsonb;
