"""A Kafka broker and a PostgreSQL server from Python packages and pinned jars, under one supervisor, only on loopback."""
