"""A module with a function `command` for each verb; cli/main.py imports only the module of the given verb."""
