-- The deposited or returned amount of each completed transfer equals the withdrawn amount.
SELECT payer, transfer, withdrawn, deposited, returned FROM bank.transfers
WHERE withdrawn IS DISTINCT FROM coalesce(deposited, returned) AND withdrawn <> coalesce(deposited, returned)
ORDER BY payer, transfer;
