"""Benchmarks of Onefold, printed with a description of the machine. Never tests.

- environment: a broker and a database of the benchmark, deleted afterwards, and Onefold's own commands
- machine: description of the machine
- cpu: CPU time of processes over an interval; percentiles
- workload: generator and topics of a pipeline
- processor: events processed per second, from a filled input topic
- sink: output records written per second, from filled output topics
- follower: times of accepted records
- rows: times of rows in PostgreSQL
- hot_hot: longest gap after the kill of one of two processes, active-active and partitioned
- latency: from produce to visibility in PostgreSQL, event by event, at a steady rate
- peers: comparison with Kafka Streams
"""
