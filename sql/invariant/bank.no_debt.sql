-- No account has a negative balance after its last ledger entry. `onefold verify bank` checks the balance after every entry.
SELECT account, entries, balance FROM bank.accounts WHERE balance < 0 ORDER BY account;
