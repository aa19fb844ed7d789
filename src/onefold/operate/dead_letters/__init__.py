"""`onefold dead-letters`: rejected records, their replay and their drop."""
