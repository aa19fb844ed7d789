-- In every snapshot all balances and the money in flight are what the accounts were opened with.
SELECT balances, in_flight, total, opened FROM bank.summary WHERE total <> opened;
