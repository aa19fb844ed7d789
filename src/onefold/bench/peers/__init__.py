"""Onefold beside Kafka Streams: the same rule over the same records of one broker, by turns."""
