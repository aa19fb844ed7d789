-- The number of the batch's messages in each tenth of a second, by the time of the last message of each delta. sent_at is the
-- middle of the tenth, in microseconds since 1970.
SELECT traded_at DIV 100000 * 100000 + 50000 AS sent_at, sum(messages) AS messages
FROM :batch
GROUP BY ALL
