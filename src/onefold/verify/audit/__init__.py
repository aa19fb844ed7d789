"""The auditor: it follows a pipeline live and says what diverges, seconds after it was committed.

following    reads all topics as they grow; what it knows of them is the `State` that `verify` has, too
versions     what each row must be at the offsets of the sink's ledger, which may be behind
sums         the same of tables of sums
live         one snapshot of the database, of which only parts are read
tables       the rows of such a snapshot against what they must be
auditor      all of that, again and again
"""
