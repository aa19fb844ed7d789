-- Who said it: 'verify', which judges all that there is, or 'audit', which sees less and says it again and again. NULL: a verdict
-- of before there was this column.
ALTER TABLE onefold.verdict ADD COLUMN IF NOT EXISTS judge text;
