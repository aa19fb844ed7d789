"""The continuous verifier: follow a running pipeline, and report mismatches seconds after the commit.

- log_follower: reads all topics as they grow, into the same `TopicState` as `verify`
- frontier: the ends of outputs to read before the model takes the inputs
- pending_feedback: the expected records in feedback topics and queues
- versions: the expected rows at the offsets of the sink's ledger, which may lag
- derived_rows: the same for sums and for rows gathered from a table
- tables: the rows of a database snapshot against the expected rows
- pace: intervals and step sizes
- auditor: the loop over all parts
"""
