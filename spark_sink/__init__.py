"""Writes Kafka's output topics to Postgres with Spark, every record exactly once. Postgres stores the positions."""
