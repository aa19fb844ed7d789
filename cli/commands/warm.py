"""`onefold warm`: the archives of classes with which the broker's and the sink's JVM start sooner."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from onefold import class_archive
from onefold.error_codes import Code
from onefold.exit_codes import INTERRUPTED
from onefold.operate import pipelines
from onefold.operate.errors import UserError
from onefold.operate.progress import Progress
from onefold.operate.settings import load
from onefold.stack import filelock, jars, java
from onefold.stack import warm as kafka

LOWEST = 19  # whatever else runs goes first


def command() -> None:
    """Create class-data-sharing (CDS) archives, so that Kafka and Spark start faster on this machine. A stack creates them
    after five minutes.

    Example: onefold warm
    """
    os.nice(LOWEST)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # its JVM has to be ended as well
    settings, progress = load(), Progress()
    found = java.locate(settings.cache)
    broker, spark = (
        jars.ensure(group, settings.cache, found.executable, _counting(progress, what))
        for group, what in (("broker", "Kafka"), ("spark", "Spark"))
    )
    from onefold.spark_sink.errors import SinkError, sentence
    from onefold.spark_sink.spark import archive, warm

    home = str(found.spark_home)

    def of_spark(file: Path) -> bool:
        try:
            return warm.make(file, pipelines.found().pipelines.values(), spark, home)
        except SinkError as error:
            raise UserError(error.code, sentence(error)) from None

    _note("Spark", "the sink", archive.place(settings.cache, spark, home), of_spark, progress)
    _note(
        "Kafka",
        "the broker",
        kafka.place(settings.cache, broker, found.executable),
        lambda file: kafka.make(file, broker, found.executable),
        progress,
    )


def _note(product: str, who: str, file: Path | None, make: Callable[[Path], bool], progress: Progress) -> None:
    if file is None:
        typer.echo(f"This Java keeps no classes; {who} starts without.")
        return
    progress.say(f"noting which classes {product} needs")
    with filelock.held(file.parent / ".lock"):
        if file.exists():
            progress.clear()
            typer.echo(f"Those of {product} are noted in {file} already.")
            return
        class_archive.clear_drafts(file)
        try:
            made = make(file)
        except (SystemExit, KeyboardInterrupt) as asked:
            progress.clear()
            # At once: PySpark would go on to ask the JVM, which is gone, and tell of that at length.
            os._exit(INTERRUPTED if isinstance(asked, KeyboardInterrupt) else 128 + signal.SIGTERM)
    if not made:
        raise UserError(
            Code.CLASSES_NOT_ARCHIVED,
            f"Java wrote no classes of {product} down",
            "Nothing but the time of a start depends on it.",
        )
    progress.done(f"{who}'s next start takes its classes from {file}")


def _counting(progress: Progress, what: str) -> jars.Progress:
    return lambda done, total: progress.say(f"fetching {what}'s jars: {done} of {total}")
