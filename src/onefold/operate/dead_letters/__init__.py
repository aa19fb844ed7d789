"""`onefold dead-letters`: replay and drop rejected records."""
