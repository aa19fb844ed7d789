-- No account has less than nothing, as its last line stands. That none ever had, between two lines that landed together, is for
-- `onefold verify bank` to see.
SELECT account, entries, balance FROM bank.accounts WHERE balance < 0 ORDER BY account;
