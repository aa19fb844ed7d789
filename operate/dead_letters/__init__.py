"""`onefold dead-letters`: rejected records, and their replay."""
