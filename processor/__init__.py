"""Kafka to Kafka, one transaction at a time."""
