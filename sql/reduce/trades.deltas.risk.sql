-- What a batch adds to every level of the hierarchy, the total included; NULL stands for all.
WITH pairs AS (
    -- Map: partial sums where the records are, by the leaf that gains and the leaf that was left. Values are millionths;
    -- summed as whole units and the rest, each stays far inside 64 bits. There is one topic; it is grouped by because
    -- Spark sorts all records for an aggregate whose value is a text.
    SELECT risk_type, region, trade_desk, previous_risk_type, previous_region, previous_trade_desk, topic,
           sum(value DIV 1000000)          AS units,
           sum(value % 1000000)            AS millionths,
           sum(previous_value DIV 1000000) AS previous_units,
           sum(previous_value % 1000000)   AS previous_millionths,
           count(*)                        AS trades,
           count(previous_value)           AS previous_trades,
           max_by(partition, offset)       AS partition,
           max(offset)                     AS offset
    FROM :batch
    GROUP BY ALL
),
leaves AS (
    -- Two rows out of one. As a union of two queries it would be two passes over all records.
    SELECT stack(2, risk_type, region, trade_desk,
                    cast(units AS decimal(38, 0)) * 1000000 + millionths, trades,
                    coalesce(previous_risk_type, risk_type), coalesce(previous_region, region),
                    coalesce(previous_trade_desk, trade_desk),
                    -(cast(previous_units AS decimal(38, 0)) * 1000000 + previous_millionths), -previous_trades)
               AS (risk_type, region, trade_desk, value, trades),
           topic, partition, offset
    FROM pairs
),
levels AS (
    -- Reduce: few rows by now. Each counts at eight levels, one for every choice of names that are left out. CUBE would
    -- give the same sums (names are never NULL), but Spark exchanges its rows between tasks even when there is one task.
    SELECT if(without & 4 <> 0, NULL, risk_type) AS risk_type, if(without & 2 <> 0, NULL, region) AS region,
           if(without & 1 <> 0, NULL, trade_desk) AS trade_desk, value, trades, topic, partition, offset
    FROM leaves LATERAL VIEW explode(sequence(0, 7)) choices AS without
    WHERE trades <> 0  -- new trades leave nothing
)
SELECT risk_type, region, trade_desk, sum(value) AS value, sum(trades) AS trades,
       topic, max_by(partition, offset) AS partition, max(offset) AS offset
FROM levels
GROUP BY ALL
