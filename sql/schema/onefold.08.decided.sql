-- How far the decision log of a pipeline with replicas has come true, per partition of it: {"version", "closed", "inputs"}, as
-- of next_offset. It moves in the transaction that moves next_offset. NULL: nothing was ever opened there, and of topics that
-- are no decision log. A sink that has rows of its decision log here lands from that, and never from the output topics.
ALTER TABLE onefold.ledger ADD COLUMN IF NOT EXISTS decided jsonb;
