-- A balance is replaced with every entry, a transfer once or twice: room to change them in place (see runner.02.sql).
ALTER TABLE bank.accounts SET (fillfactor = 50);
ALTER TABLE bank.transfers SET (fillfactor = 70);
