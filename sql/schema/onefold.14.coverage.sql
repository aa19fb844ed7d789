-- What the judge looked at the last time, beside "offsets": {"from": {topic: {partition: offset}}, "outputs": how many, "rows": how
-- many, "not_judged": [[name, reason]]}. NULL: a verdict of before there was this column.
ALTER TABLE onefold.verdict ADD COLUMN IF NOT EXISTS coverage jsonb;
