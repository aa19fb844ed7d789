"""`onefold rebuild`: tables recreated from the log."""
