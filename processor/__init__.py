"""The processor: reads from Kafka and writes to Kafka, one transaction at a time."""
