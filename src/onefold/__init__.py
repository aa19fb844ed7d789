"""Every event folded exactly once: Kafka to Postgres with right numbers, and the proof."""
