"""The write protocol of the sink: a batch and its offsets in one Postgres transaction, without imports of Spark."""
