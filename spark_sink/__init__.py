"""Lands Kafka's output topics in Postgres on Spark, every record exactly once: Postgres keeps the positions."""
