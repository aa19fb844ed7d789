"""Rebuild the tables of a pipeline from the log in a temporary database, and write the differing rows to the live tables.

A sink writes the whole log to a separate database, with the statements of the live tables. The copy has to reach at least the
positions in the live ledger. Then one transaction locks the ledger positions, compares the tables, and writes the differing
rows. It also sets the positions to the offsets of the new rows. Readers of the tables see either all old rows or all new rows.
The live sink waits, and continues from the new positions. A failed rebuild changes nothing.

A rebuild since a time replaces only rows that records since then have produced. Older rows stay, in both databases. The
positions move as in a full rebuild, because later records have not changed the older rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from onefold import postgres
from onefold.config.errors import UserError, of_postgres
from onefold.config.settings import Settings
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import REFUSED
from onefold.operate import merge_sql, offsets, pausing, pipelines
from onefold.operate.dead_letters.letters import said
from onefold.operate.merge_sql import ORIGIN
from onefold.operate.offsets import Place
from onefold.operate.rebuild.table_diff import ComparedTable, Replaced, described, part_of, replace_rows, same
from onefold.processor import loading
from onefold.processor.io import admin
from onefold.spark_sink.kafka.topics import KafkaTopics
from onefold.spark_sink.landing import batch_history, ledger

# The copying sink needs a second or two for new records, while the live sink is blocked.
_LEVEL_S = 20.0
# The copying sink writes this number of offsets within that time.
_NEARLY_LEVEL = 20_000
_LOOK_AGAIN_S = 0.2
# The time-out for table locks that other sessions hold.
_LOCK_TIMEOUT = "10s"
_NAME_MAX = 63  # bytes of a name in PostgreSQL
_REJECTED = ("sink", "topic", "partition", "offset", "reason", "value")
# A sink's statement, which may hold table locks, takes at most two minutes.
_PATIENCE_S = 150.0
# Row security would hide rows, and hidden rows would be inserted twice: with `off` such a query fails instead.
_SETTINGS = {"row_security": "off"}
_LOCALE = """
SELECT pg_encoding_to_char(encoding), datcollate, datctype, datlocprovider,
       coalesce(to_jsonb(pg_database) ->> 'datlocale', to_jsonb(pg_database) ->> 'daticulocale')
FROM pg_database WHERE datname = current_database()
"""


@dataclass(frozen=True)
class Rebuilt:
    """The changes of a rebuild, or of a dry run.

    Attributes:
        tables: the compared tables, rejected records last.
        kept: tables that a rebuild cannot fill: without a key, and without origin columns.
        held_s: how long the live sink was blocked.
    """

    domain: str
    tables: tuple[Replaced, ...]
    kept: tuple[str, ...]
    held_s: float

    @property
    def differing(self) -> int:
        """The number of rows whose contents changed for readers."""
        return sum(one.changed + one.added + one.deleted for one in self.tables)

    def as_data(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**asdict(self), "differing": self.differing}


class Rebuild:
    """The rebuild of one pipeline. Methods raise UserError, with one sentence.

    Args:
        since_ms: replace only rows from records of this time or later, in milliseconds since 1970; None: all.
    """

    def __init__(self, domain: str, settings: Settings, since_ms: int | None = None) -> None:
        (self.name,) = pipelines.checked([domain])
        self._settings = settings
        self._since_ms = since_ms
        self._pipeline = pipelines.found()[self.name]
        self._dsn = settings.postgres()
        with said({}):
            self._topology = loading.topology_of(self.name)
            self._kafka = admin.connect(settings.usable_client())
        self._inputs: Mapping[Place, int] | None = None
        self._ends: Mapping[Place, int] | None = None

    @cached_property
    def _reads(self) -> list[str]:
        """The topics that fill the tables."""
        return offsets.landed_topics(self.name)

    @contextmanager
    def beside(self) -> Iterator[str]:
        """The DSN of an empty temporary database, dropped at the end. The leftover database of a killed rebuild is dropped
        first.

        Raises:
            UserError: the pipeline is paused, another rebuild runs, the tables cannot be compared, or source records are gone
                (all exit code 3); or the database user may not create databases.
        """
        if (pause := pausing.known(self._settings, [self.name]).get(self.name)) is not None:
            raise UserError(
                Code.PAUSED,
                f"{self.name} is {pause}: the sink of a rebuild would wait",
                f"Run `onefold resume {self.name}`, and ask again.",
                REFUSED,
            )
        with _postgres(self._dsn) as keeper:
            if keeper.execute("SELECT to_regclass(%s)", (ledger.TABLE,)).fetchone() == (None,):
                raise UserError(
                    Code.TABLE_MISSING,
                    f"there are no tables of {self.name} in this database yet",
                    "Start a sink: it makes them.",
                )
            # Refuse before hours of work.
            self._tables(keeper)
            self._refuse_what_is_not_whole()
            self._since(keeper)
            (oid,) = keeper.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone() or (0,)
            name = f"onefold_rebuild_{oid}_{self.name}"[:_NAME_MAX]
            asked = "SELECT pg_try_advisory_lock(hashtextextended(%s, 0))"
            if keeper.execute(asked, (name,)).fetchone() == (False,):
                raise UserError(
                    Code.COMMAND_RUNNING, f"another rebuild of {self.name} is under way", "Wait for its end.", REFUSED
                )
            try:
                _make_database(keeper, name)
                yield make_conninfo(self._dsn, dbname=name)
            finally:
                keeper.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def wait(self, beside: str, running: Callable[[], None], say: Callable[[str], None]) -> None:
        """Wait until the tables in `beside` have almost caught up with the live tables.

        Args:
            running: raises if the sink that fills `beside` has ended.
            say: called with progress messages.
        """
        while True:
            running()
            waiting = self._processors_behind()
            if waiting:
                say(f"waiting for the processors of {self.name}: {waiting:,} offsets of the inputs")
            else:
                goal = self._goal()
                at = _landed(beside, self.name)
                left = sum(max(0, end - at.get(place, 0)) for place, end in goal.items())
                say(f"writing {self.name} aside: {sum(goal.values()) - left:,} of {sum(goal.values()):,} offsets")
                if left <= _NEARLY_LEVEL and at:
                    return
            time.sleep(_LOOK_AGAIN_S)

    def replace(self, beside: str, *, dry_run: bool = False, level_s: float = _LEVEL_S) -> Rebuilt | None:
        """Make the live tables and the ledger equal to the copy in `beside`. None: the copy did not catch up in time; wait
        again.

        Args:
            dry_run: roll back at the end, after the comparison.
            level_s: the time limit for the copy to catch up.
        """
        with _postgres(self._dsn) as live:
            began = time.monotonic()
            try:
                with live.transaction(force_rollback=dry_run):
                    found = self._replaced(live, beside, level_s)
            except psycopg.Error as error:
                if isinstance(error, postgres.HeldUp) and error.unknown:
                    raise of_postgres(
                        error,
                        "whether PostgreSQL did it is not known",
                        "Mend that, and run it again: what is right already is not written again.",
                    ) from None
                raise of_postgres(
                    error, "PostgreSQL did not do it", "Nothing was changed; mend that, and run it again."
                ) from None
            if found is None:
                return None
            tables, kept = found
            return Rebuilt(self.name, tables, kept, time.monotonic() - began)

    def _replaced(
        self, live: psycopg.Connection[Any], beside: str, level_s: float
    ) -> tuple[tuple[Replaced, ...], tuple[str, ...]] | None:
        # No time limit: limits of this user are not made for a rebuild.
        live.execute("SET LOCAL statement_timeout = 0")
        live.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        live.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        ledger.hold(live, self.name)
        goal, deadline = self._goal(live), time.monotonic() + level_s
        tables, kept = self._tables(live)
        with _postgres(beside) as other:
            while True:
                # One snapshot of all tables and of the ledger.
                with other.transaction():
                    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    at = offsets.landed_over(other, self.name)
                    if all(at.get(place, 0) >= end for place, end in goal.items()):
                        return self._write(live, other, tables), kept
                if time.monotonic() > deadline:
                    return None
                time.sleep(_LOOK_AGAIN_S)

    def _write(
        self, live: psycopg.Connection[Any], other: psycopg.Connection[Any], tables: Sequence[ComparedTable]
    ) -> tuple[Replaced, ...]:
        for table in tables:
            live.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(sql.SQL(table.name)))
        mine = sql.SQL("sink = {}").format(sql.Literal(self.name))
        rejected = part_of(described(live, "onefold.rejected"), _REJECTED, mine)
        # The columns of this version: an earlier version may have left other columns.
        known = described(other, ledger.TABLE)
        begun, before = self._since(live), ledger.positions(live, self.name)
        every = [replace(same(table, described(other, table.name)), begun=begun) for table in tables]
        rejected = replace(rejected, begun=begun)
        every += [rejected, part_of(known, known.names, mine)]
        done = [replace_rows(live, other, table, number) for number, table in enumerate(every)]
        batch_history.add_rebuilt(live, self.name, before)
        return tuple(done[:-1])

    def _goal(self, live: psycopg.Connection[Any] | None = None) -> Mapping[Place, int]:
        """The offset by partition that the copy must reach: the position of the live tables, and the end of the log at the
        start.
        """
        if self._ends is None:
            with said(self._kafka):
                self._ends = offsets.stable_ends(self._kafka, self._reads)
        if live is None:
            with _postgres(self._dsn) as connection:
                held = offsets.last_batches(connection, self.name)
        else:
            held = offsets.last_batches(live, self.name)
        ids = self._ids()
        # For a recreated topic only the end of the log counts.
        same_log = {place: at.next_offset for place, at in held.items() if ids.get(place[0]) == at.topic_id}
        return {place: max(end, same_log.get(place, 0)) for place, end in self._ends.items()}

    def _ids(self) -> dict[str, str]:
        with said(self._kafka):
            return admin.ask_topic_ids(self._kafka, self._reads)()

    def _since(self, live: psycopg.Connection[Any]) -> tuple[tuple[str, int, int], ...]:
        """The first offset by partition whose rows are replaced: unwritten records always count. (): all rows.

        Raises:
            UserError: the offsets of the live tables belong to a recreated topic, or to a decision log (exit code 3).
        """
        if self._since_ms is None:
            return ()
        held, ids = offsets.last_batches(live, self.name), self._ids()
        if why := offsets.from_decision_log(self._topology, held):
            raise UserError(Code.TABLES_OF_OTHER_TOPICS, why, f"Replace all rows: onefold rebuild {self.name}", REFUSED)
        for (topic, _), at in held.items():
            if ids.get(topic) != at.topic_id:
                raise UserError(
                    Code.TOPIC_RECREATED,
                    f"the live tables were filled from another {topic} than the one that is there now",
                    f"Replace all rows: onefold rebuild {self.name}",
                    REFUSED,
                )
        with said(self._kafka):
            found = offsets.since(self._kafka, self._reads, self._since_ms)
        reached = {place: at.next_offset for place, at in held.items()}
        return tuple(
            (*place, reached.get(place, 0) if offset < 0 else min(offset, reached.get(place, 0)))
            for place, offset in sorted(found.items())
        )

    def _refuse_what_is_not_whole(self) -> None:
        """Raises UserError (exit code 3) if source records of rows may be gone: a rebuild would delete such rows."""
        try:
            with closing(KafkaTopics(self._settings.kafka(), self._settings.librdkafka)) as topics:
                begun = {place: reach.start for place, reach in topics.reach(self._reads).items() if reach.start > 0}
                compacted = [topic for topic in self._reads if topics.is_compacted(topic)]
        except CodedError as error:
            raise UserError(error.code, str(error), "Nothing was changed; run it again.") from None
        for (topic, partition), start in begun.items():
            raise UserError(
                Code.RECORDS_DELETED,
                f"{topic}/{partition} begins at offset {start}: rows of the deleted records could not be rebuilt",
                "Nothing was changed.",
                REFUSED,
            )
        for topic in compacted:
            raise UserError(
                Code.TOPIC_COMPACTED,
                f"{topic} is compacted: records that made rows may be gone from it",
                "Nothing was changed.",
                REFUSED,
            )

    def _processors_behind(self) -> int:
        """The unprocessed offsets of the inputs, up to their ends at the first call. Counted only for recreated outputs, or for
        rows from a decision log: an earlier replacement would restore old rows.
        """
        if self._ends is not None:
            return 0
        with _postgres(self._dsn) as connection:
            held = offsets.last_batches(connection, self.name)
        ids = self._ids()
        same = all(ids.get(topic) == at.topic_id for (topic, _), at in held.items() if topic in ids)
        if same and not offsets.from_decision_log(self._topology, held):
            return 0
        found = offsets.behind(self._topology, self._settings).inputs
        if found is None:
            return 1
        if self._inputs is None:
            self._inputs = {place: end for place, (_, end) in found.items()}
        return sum(max(0, min(end, self._inputs.get(place, 0)) - reached) for place, (reached, end) in found.items())

    def _tables(self, connection: psycopg.Connection[Any]) -> tuple[list[ComparedTable], tuple[str, ...]]:
        """The tables that a rebuild can fill, and the names of the remaining tables.

        Raises:
            UserError: exit code 3: a table has origin columns but no key, or has rows of another pipeline.
        """
        others = [one for one in pipelines.found().pipelines.values() if one.name != self.name]
        shared = {merge_sql.parts(name): other.name for other in others for name in merge_sql.written(other)}
        for name in merge_sql.written(self._pipeline):
            if (writer := shared.get(merge_sql.parts(name))) is not None:
                raise UserError(
                    Code.SHARED_DATA,
                    f"{writer} writes to {name} too, and its rows would be deleted",
                    "Nothing was changed.",
                    REFUSED,
                )
        found = [described(connection, name) for name in merge_sql.written(self._pipeline)]
        there = [table for table in found if table.columns]
        for table in there:
            if not table.key and set(ORIGIN) <= set(table.names):
                raise UserError(
                    Code.TABLE_KEYLESS,
                    f"{table.name} has no key by which its rows could be compared",
                    'Give it a primary key; where each record makes one row, (topic, partition, "offset") is one.',
                    REFUSED,
                )
        return [table for table in there if table.key], tuple(table.name for table in there if not table.key)


def _make_database(keeper: psycopg.Connection[Any], name: str) -> None:
    """Create an empty database with the locale of the live database, because merges may compare texts."""
    encoding, collate, ctype, provider, locale = keeper.execute(_LOCALE).fetchone() or ("", "", "", "c", None)
    parts = [sql.SQL("ENCODING {} LC_COLLATE {} LC_CTYPE {}").format(*map(sql.Literal, (encoding, collate, ctype)))]
    if provider != "c":
        kinds = {"i": ("icu", "ICU_LOCALE"), "b": ("builtin", "BUILTIN_LOCALE")}
        named, option = kinds[provider]
        parts.append(sql.SQL(f"LOCALE_PROVIDER {named} {option} {{}}").format(sql.Literal(locale)))
    try:
        keeper.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        made = sql.SQL("CREATE DATABASE {} TEMPLATE template0 {}")
        keeper.execute(made.format(sql.Identifier(name), sql.SQL(" ").join(parts)))
    except psycopg.errors.InsufficientPrivilege:
        (user,) = keeper.execute("SELECT current_user").fetchone() or ("",)
        raise UserError(
            Code.POSTGRES_REFUSES,
            f"the rebuild needs a temporary database, and {user} may not create one",
            f"Run ALTER ROLE {user} CREATEDB, ask again, and take it back afterwards.",
        ) from None


def _landed(dsn: str, sink: str) -> dict[Place, int]:
    """The positions of a sink; {} before its tables exist."""
    try:
        return offsets.landed(dsn, sink)
    except psycopg.Error as error:
        raise of_postgres(error, "PostgreSQL does not answer", "Nothing was changed; run it again.") from None


@contextmanager
def _postgres(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A new connection in autocommit mode."""
    try:
        with postgres.connect(dsn, "onefold rebuild", settings=_SETTINGS, patience_s=_PATIENCE_S) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise of_postgres(error, "PostgreSQL does not answer", "Nothing was changed; run it again.") from None
