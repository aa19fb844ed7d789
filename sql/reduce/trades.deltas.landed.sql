-- How many messages of the batch say that they were made within which tenth of a second; in microseconds since 1970,
-- the middle of it.
SELECT traded_at DIV 100000 * 100000 + 50000 AS sent_at, count(*) AS messages
FROM :batch
GROUP BY ALL
