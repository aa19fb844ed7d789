"""Configuration of every process: settings and their sources, errors, logs, and metrics over HTTP.

settings         every ONEFOLD_ variable, its default and its check.
origins          the source of each value: environment, file, running stack, default.
redaction        values without their secrets, for printing.
guarantee        settings of Kafka and PostgreSQL that weaken or break a guarantee.
errors           the error for a user, and its exit code.
logs             log lines, as text or JSON.
metrics_server   /metrics, /healthz and /livez.
access_token     the token for the dashboard and for /metrics.
allowed_hosts    the host names under which a service answers.
private_files    files and folders readable only by their owner.
stack_state      the JSON file of the embedded stack's running services.
"""
