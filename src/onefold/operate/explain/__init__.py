"""`onefold explain`: what made a row of a table."""
