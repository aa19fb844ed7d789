"""The sink's use of Spark: the session, a streaming query for each pipeline, decoding, reductions, and the rows of a batch."""
