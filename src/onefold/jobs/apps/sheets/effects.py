"""Factories of the effects of `sheets`, declared in onefold.toml: each effect with its database, store and writer."""

import json
from collections.abc import Callable
from dataclasses import asdict

from onefold.jobs.apps.sheets.entries import Entries
from onefold.jobs.apps.sheets.snapshot import FinishedSnapshot, Snapshots
from onefold.jobs.apps.sheets.uploads import KeepOrDiscard
from onefold.jobs.context import Context
from onefold.jobs.writer import RecordWriter
from onefold.spark_sink.postgres.connection import connect

FINISHED = "sheets.finished"


def snapshots(context: Context) -> Snapshots:
    """The effect of the queue sheets.jobs."""
    entries = Entries(lambda: connect(context.dsn, "snapshots", "worker"))
    return Snapshots(entries, context.objects(), _to_the_log(context.writer()))


def uploads(context: Context) -> KeepOrDiscard:
    """The effect of the queue sheets.objects."""
    return KeepOrDiscard(context.objects())


def _to_the_log(writer: RecordWriter) -> Callable[[FinishedSnapshot], None]:
    def publish(finished: FinishedSnapshot) -> None:
        writer.write(FINISHED, finished.sheet_id.encode(), json.dumps(asdict(finished)).encode(), [])

    return publish
