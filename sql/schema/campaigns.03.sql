-- What a person would rather look at than read; the dashboard draws a bar for each row.
CREATE OR REPLACE VIEW campaigns.chart_1_subjects AS
SELECT subject, round(avg(computed))::bigint AS mails_per_campaign, sum(computed)::bigint AS mails, count(*) AS campaigns
FROM campaigns.totals
GROUP BY subject
ORDER BY mails_per_campaign DESC, subject;
COMMENT ON VIEW campaigns.chart_1_subjects IS 'Which subject brings the larger campaigns';

CREATE OR REPLACE VIEW campaigns.chart_2_months AS
SELECT to_char(month, 'YYYY-MM') AS month, mails, sends
FROM (SELECT date_trunc('month', date) AS month, sum(sent)::bigint AS mails, count(*) FILTER (WHERE sent > 0) AS sends
      FROM campaigns.sends
      GROUP BY 1
      ORDER BY 1 DESC
      LIMIT 12) AS latest
ORDER BY latest.month;
COMMENT ON VIEW campaigns.chart_2_months IS 'Mails by month';
