"""`onefold warm`: the archive of classes with which the sink's JVM starts sooner."""

from __future__ import annotations

import os
import signal
import sys

import typer

from onefold.exit_codes import INTERRUPTED
from onefold.operate import pipelines
from onefold.operate.errors import UserError
from onefold.operate.progress import Progress
from onefold.operate.settings import load
from onefold.stack import filelock, jars, java

LOWEST = 19  # whatever else runs goes first


def command() -> None:
    """Write down once which classes Spark needs, so that every sink of this machine starts sooner. The stack does it by
    itself when it has run for five minutes.

    Example: onefold warm
    """
    os.nice(LOWEST)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its JVM has to be ended as well
    settings, progress = load(), Progress()
    found = java.locate(settings.cache)
    spark = jars.ensure(
        "spark",
        settings.cache,
        found.executable,
        lambda done, total: progress.say(f"fetching Spark's jars: {done} of {total}"),
    )
    from onefold.spark_sink.errors import SinkError, sentence
    from onefold.spark_sink.spark import archive, warm

    file = archive.place(settings.cache, spark, str(found.spark_home))
    if file is None:
        typer.echo(f"The Java in {found.spark_home} keeps no classes; the sink starts without.")
        return
    progress.say("noting which classes Spark needs")
    with filelock.held(file.parent / ".lock"):
        if file.exists():
            progress.clear()
            typer.echo(f"They are noted in {file} already.")
            return
        archive.clear_drafts(file)
        try:
            made = warm.make(file, pipelines.found().pipelines.values(), spark, str(found.spark_home))
        except SinkError as error:
            raise UserError(sentence(error)) from None
        except (SystemExit, KeyboardInterrupt) as asked:
            progress.clear()
            # At once: PySpark would go on to ask the JVM, which is gone, and tell of that at length.
            os._exit(INTERRUPTED if isinstance(asked, KeyboardInterrupt) else 128 + signal.SIGTERM)
    if not made:
        raise UserError(
            f"the Java in {found.spark_home} wrote no classes down", "Nothing but the time of a start depends on it."
        )
    progress.done(f"the sink's next start takes its classes from {file}")
