-- What arrives is what was withdrawn. Transfers that are settled in full are not in flight any more.
SELECT payer, transfer, withdrawn, deposited, returned FROM bank.transfers
WHERE withdrawn IS DISTINCT FROM coalesce(deposited, returned) AND withdrawn <> coalesce(deposited, returned)
ORDER BY payer, transfer;
