-- A total is replaced with every send: room to change it in place (see runner.02.sql).
ALTER TABLE campaigns.totals SET (fillfactor = 50);
