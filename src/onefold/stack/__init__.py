"""A real Kafka broker and a real PostgreSQL from Python packages and pinned jars, under one supervisor, on loopback
only.
"""
