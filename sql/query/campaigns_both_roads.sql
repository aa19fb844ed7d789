-- The campaigns whose row in the wide table differs from the sum of their sends. The result must be empty.
SELECT id, totals.computed AS wide, roads.computed AS summed, totals.sends AS wide_sends, roads.sends AS summed_sends
FROM campaigns.totals AS totals
FULL JOIN campaigns.totals_from_sends AS roads USING (id)
WHERE (totals.computed, totals.sends, totals.email, totals.subject)
      IS DISTINCT FROM (roads.computed, roads.sends, roads.email, roads.subject)
ORDER BY id;
