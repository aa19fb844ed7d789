"""What is asked of Kafka besides the records, which Spark reads: settings for both clients, topics and their identity."""
