-- In every snapshot, the sum of all balances and the money in flight equals the sum of the opening balances.
SELECT balances, in_flight, total, opened FROM bank.summary WHERE total <> opened;
