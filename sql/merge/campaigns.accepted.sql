-- campaigns.sends: a row is the staged record with the greatest (version, sent, email, subject, offset) of its (id, date).
-- Texts are compared by code point (COLLATE "C"), as in the processor.
INSERT INTO campaigns.sends AS stored
      (id, date, sent, email, subject, version, topic, partition, "offset")
SELECT DISTINCT ON (id, date::timestamp)
       id, date::timestamp, sent, email, subject, version, topic, partition, "offset"
FROM :stage AS stage
ORDER BY id, date::timestamp, version DESC, sent DESC, email COLLATE "C" DESC, subject COLLATE "C" DESC, "offset" DESC
ON CONFLICT (id, date) DO UPDATE
SET sent      = excluded.sent,
    email     = excluded.email,
    subject   = excluded.subject,
    version   = excluded.version,
    topic     = excluded.topic,
    partition = excluded.partition,
    "offset"  = excluded."offset"
WHERE (excluded.version, excluded.sent, excluded.email COLLATE "C", excluded.subject COLLATE "C", excluded."offset")
    > (stored.version, stored.sent, stored.email COLLATE "C", stored.subject COLLATE "C", stored."offset");
