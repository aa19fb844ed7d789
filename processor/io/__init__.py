"""Access to Kafka, schemas and files. Of the processor, only this folder imports the Kafka client and RocksDB."""
