-- About half of the trades are changed, most of them once, soon after they came: room to change them in place. Without
-- it each change is a new row elsewhere and a new entry in the index. It holds for pages that are written from now on.
ALTER TABLE trades.current SET (fillfactor = 70);
