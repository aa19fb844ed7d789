"""Verify a pipeline: compute from the input log which rows and records must exist, and compare. Processor and sink share no
code with the model, the decoders and the rules of the verifier.

- verifier: the entry point: a verdict, from the beginning of the log or from a checkpoint
- judge: the steps of a verification
- log: reads topics up to given ends
- decode: an input record -> its fields, or the reason for a dead letter
- expect: input records -> the expected rows, dead letters and repartitioned copies
- outputs: the records in output and dead-letter topics against the expected records
- matching: each output record against the row as of its input record
- partitioner: the partition of a key, and records in wrong partitions
- state: the state of a verification, reading it from topics, and its checkpoints
- tables: the rows in PostgreSQL against the expected rows
- verdict: valid, invalid or unknown, with all mismatches
- audit/: the continuous verification of a running pipeline
"""
