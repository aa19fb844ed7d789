"""The judge: what the tables should hold, worked out from the input log by code that shares nothing with the judged.

workloads/   per domain a seeded generator of input, and a model of the rows that they must give
decode       which bytes are admissible, and their values
placement    the partition of a key, and whether records lie there
expect       records of the input log -> the rows, dead letters and repartitioned copies that must exist
log          reads topics to a stated end, or gives the reason why it cannot
outputs      what was written to the output and dead-letter topics, against what was expected
matching     each output record against the row as its input record made it
state        all of that, how it is read, and the checkpoints that are made of it
tables       the rows in Postgres, against what was expected
verdict      valid, invalid or unknown, with everything found
judge        all of that in order
verify       a verdict, from the beginning or from what was proved
audit/       the same while work goes on, without end
bench/       how fast the product is on this machine
"""
