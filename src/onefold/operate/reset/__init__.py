"""`onefold reset`: the results of a pipeline deleted, so that it starts over."""
