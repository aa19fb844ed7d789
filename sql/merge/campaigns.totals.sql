-- campaigns.totals: a row is the staged record with the greatest (changes, offset) of its campaign. Every record has the totals
-- of the whole campaign, so the merge adds nothing, and no replay can count twice.
INSERT INTO campaigns.totals AS stored
      (id, email, subject, date_1, sent_1, date_2, sent_2, sent_rest, sends, changes, topic, partition, "offset")
SELECT DISTINCT ON (id)
       id, email, subject, date_1::timestamp, sent_1, date_2::timestamp, sent_2, sent_rest, sends, changes,
       topic, partition, "offset"
FROM :stage AS stage
ORDER BY id, changes DESC, "offset" DESC
ON CONFLICT (id) DO UPDATE
SET email     = excluded.email,
    subject   = excluded.subject,
    date_1    = excluded.date_1,
    sent_1    = excluded.sent_1,
    date_2    = excluded.date_2,
    sent_2    = excluded.sent_2,
    sent_rest = excluded.sent_rest,
    sends     = excluded.sends,
    changes   = excluded.changes,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE (excluded.changes, excluded."offset") > (stored.changes, stored."offset");
