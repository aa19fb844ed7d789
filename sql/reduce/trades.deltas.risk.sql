-- The additions of a batch to every level of the hierarchy, including the total. NULL stands for all.
WITH pairs AS (
    -- Map: partial sums in each task, by the new leaf and the previous leaf. Values are millionths. Units and remainders are
    -- summed separately, so that each sum stays far inside 64 bits. The single topic is a grouping column, because Spark would
    -- sort all records for an aggregate of a text.
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
    -- Split each row into two. A union of two queries would read all records twice.
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
    -- Reduce: only few rows remain. Each row counts at eight levels, for every subset of omitted names. CUBE would give the
    -- same sums, because names are never NULL, but Spark would exchange the rows between tasks even with a single task.
    SELECT if(without & 4 <> 0, NULL, risk_type) AS risk_type, if(without & 2 <> 0, NULL, region) AS region,
           if(without & 1 <> 0, NULL, trade_desk) AS trade_desk, value, trades, topic, partition, offset
    FROM leaves LATERAL VIEW explode(sequence(0, 7)) choices AS without
    WHERE trades <> 0  -- new trades have no previous leaf
)
SELECT risk_type, region, trade_desk, sum(value) AS value, sum(trades) AS trades,
       topic, max_by(partition, offset) AS partition, max(offset) AS offset
FROM levels
GROUP BY ALL
