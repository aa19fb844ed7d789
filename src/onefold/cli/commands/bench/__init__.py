"""`onefold bench`: measurements on a separate stack, a module for each measurement."""

HELP = """Measure on a broker and a database of its own, and print the figures with a description of the machine.

Example: onefold bench processor --instances 1
"""
VERBS = {
    "processor": "Processor throughput, events a second.",
    "peers": "Onefold and Kafka Streams, in alternation.",
    "sink": "Sink throughput, records a second.",
    "latency": "From produce to a visible row.",
    "hot-hot": "Pause after a kill, with active-active replicas.",
}
