"""What has to be done for sheets outside of Kafka: snapshots, uploads, and reading what came of them."""
