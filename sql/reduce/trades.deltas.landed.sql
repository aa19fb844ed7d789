-- How many messages of the batch were made within which tenth of a second, going by the last one of each change; in
-- microseconds since 1970, the middle of it.
SELECT traded_at DIV 100000 * 100000 + 50000 AS sent_at, sum(messages) AS messages
FROM :batch
GROUP BY ALL
