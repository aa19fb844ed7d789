"""A command of a package: the page on pipelines shows it, and tests/cli/test_plugins.py installs and runs it."""

import typer


def command(customer: str, days: int = 30) -> None:
    """Print the orders of a customer that are not paid in time.

    Example: onefold overdue ann --days 14
    """
    typer.echo(f"no order of {customer} is older than {days} days")
