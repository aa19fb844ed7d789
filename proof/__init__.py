"""The judge: what the tables should hold, worked out from the input log by code that shares nothing with the judged.

workloads/   per domain a seeded generator of input, and a model of the rows that they must give
decode       which bytes are admissible, and their values
placement    the partition of a key
expect       records of the input log -> the rows, dead letters and repartitioned copies that must exist
log          reads topics to a stated end, or gives the reason why it cannot
outputs      what was written to the output and dead-letter topics, against what was expected
tables       the rows in Postgres, against what was expected
verdict      valid, invalid or unknown, with everything found
judge        all of that in order
verify       a verdict, from the beginning or from what was proved
audit/       the same while work goes on, without end
bench/       how fast the product is on this machine
"""
