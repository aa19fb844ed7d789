"""Access to Kafka without Spark: the settings of both clients, the topics and their identity, and single records."""
