"""Side effects outside of Kafka. Workers do the jobs in order per log, effectively once, even after crashes."""
