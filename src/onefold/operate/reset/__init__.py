"""`onefold reset`: delete the results of a pipeline to start over."""
