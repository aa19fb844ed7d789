"""The landing protocol: a batch and its offsets in one Postgres transaction. Nothing in here needs Spark, a clock or a thread."""
