-- No account has ever had less than nothing; the last line of each is how it stands now.
SELECT account, entries, balance FROM bank.accounts WHERE balance < 0 ORDER BY account;
