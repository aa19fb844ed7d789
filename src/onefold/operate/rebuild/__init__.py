"""`onefold rebuild`: recreate tables from the log."""
