"""`onefold explain`: the origin of a table row."""
