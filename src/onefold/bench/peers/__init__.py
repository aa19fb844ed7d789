"""Compare Onefold with Kafka Streams: the same rule over the same records of one broker, in interleaved runs."""
