-- The wide table and the sums over the sends must tell the same story: this returns the campaigns where they do not.
SELECT id, totals.computed AS wide, roads.computed AS summed, totals.sends AS wide_sends, roads.sends AS summed_sends
FROM campaigns.totals AS totals
FULL JOIN campaigns.totals_from_sends AS roads USING (id)
WHERE (totals.computed, totals.sends, totals.email, totals.subject)
      IS DISTINCT FROM (roads.computed, roads.sends, roads.email, roads.subject)
ORDER BY id;
