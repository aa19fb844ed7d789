"""Configuration of every process: settings and their sources, errors, logs, and metrics over HTTP.

settings         every ONEFOLD_ variable, its default and its check
origins          which source a value comes from: command line, environment, file, default
redaction        what may be printed of a value that holds a secret
guarantee        which settings of Kafka and PostgreSQL weaken a promise
errors           the error that a user sees, and its exit code
logs             log lines, as text or JSON
metrics_server   /metrics and /healthz
allowed_hosts    the host names under which a service answers
private_files    files and folders that only their owner can read
stack_state      the JSON file that says which services of the embedded stack run
"""
