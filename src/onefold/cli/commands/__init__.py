"""One module a verb, with a function `command`; cli/main.py imports a module only when its verb is asked for."""
