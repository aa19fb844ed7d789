"""The judge: what the tables should hold, worked out from the input log by code that shares nothing with the judged.

workloads/   per domain a seeded generator of input, and a model that says what is right
decode       which bytes are admissible, and their values
placement    which partition is the home of a key
expect       records of the input log -> the rows, dead letters and forwarded copies that must exist
log          reads topics to a stated end, or says why it can not
outputs      what was written to the output and dead-letter topics, against what was expected
tables       the rows in Postgres, against what was expected
verdict      valid, invalid or unknown, with everything found
verify       all of that in order
bench/       how fast the product is on this machine
"""
