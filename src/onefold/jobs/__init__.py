"""Side effects outside of Kafka: done by workers, in order per log, and once in effect, whatever dies."""
