"""Make the tables of a pipeline anew from the log, beside the live ones, and write to these what differs.

A sink lands the whole log in a database of its own, by the statements that fill the live tables. When it has come at least as far
as the live ledger, one transaction holds the ledger's positions, compares the tables, writes the rows that differ, and moves the
positions to where the new rows stand. Whoever reads the tables sees them of before, and then those of afterwards; the live sink
waits, and goes on from the new positions. A rebuild that dies has changed nothing.

A rebuild since a time replaces only rows that records since then have made. Older rows, on both sides, stay; positions move all
the same, for what came later has changed no such row.
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

# A sink that lands beside needs a second or two for what has just arrived; it is waited for with the live one held up.
_LEVEL_S = 20.0
# So few offsets it lands in less than that.
_NEARLY_LEVEL = 20_000
_LOOK_AGAIN_S = 0.2
# Somebody else's statement that writes to a table is waited for so long.
_LOCK_TIMEOUT = "10s"
_NAME_MAX = 63  # bytes of a name in Postgres
_REJECTED = ("sink", "topic", "partition", "offset", "reason", "value")
# A statement of a sink, which may hold the locks of a table, takes two minutes at most.
_PATIENCE_S = 150.0
# A row that a policy hides would be inserted once more: a question that a policy changes ends with an error.
_SETTINGS = {"row_security": "off"}
_LOCALE = """
SELECT pg_encoding_to_char(encoding), datcollate, datctype, datlocprovider,
       coalesce(to_jsonb(pg_database) ->> 'datlocale', to_jsonb(pg_database) ->> 'daticulocale')
FROM pg_database WHERE datname = current_database()
"""


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild has changed, or would change.

    Attributes:
        tables: that were compared, rejected records last.
        kept: tables that no rebuild can fill: without a key, and without the record that each row comes from.
        held_s: how long the live sink was held up.
    """

    domain: str
    tables: tuple[Replaced, ...]
    kept: tuple[str, ...]
    held_s: float

    @property
    def differing(self) -> int:
        """Rows of which a reader saw something else before."""
        return sum(one.changed + one.added + one.deleted for one in self.tables)

    def as_data(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "differing": self.differing}


class Rebuild:
    """One pipeline's. Methods raise UserError, with one sentence.

    Args:
        since_ms: replace only rows that records of this time or a later one have made, in milliseconds since 1970; None: all.
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
        """The DSN of an empty database, which goes at the end. One that a killed rebuild has left goes first.

        Raises:
            UserError: the pipeline is paused, another rebuild is under way, the tables cannot be compared, or records that made
                rows are gone (all exit code 3); or the database user may not make databases.
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
            # What cannot be done is said before hours of work.
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
        """Until the tables in `beside` are as good as level with the live ones.

        Args:
            running: raises when the sink that fills them has ended.
            say: is told how far it is.
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
        """Make the live tables what those in `beside` are, and the ledger too. None: these have not come as far in time; wait
        again.

        Args:
            dry_run: take it back at the end, when it is known what differs.
            level_s: how long those in `beside` may take for it.
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
        # However long it takes: whoever set limits for this user did not think of a rebuild.
        live.execute("SET LOCAL statement_timeout = 0")
        live.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        live.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
        ledger.hold(live, self.name)
        goal, deadline = self._goal(live), time.monotonic() + level_s
        tables, kept = self._tables(live)
        with _postgres(beside) as other:
            while True:
                # One moment of all tables and of the ledger.
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
        # The columns that this version knows: an earlier one may have left others.
        known = described(other, ledger.TABLE)
        begun, before = self._since(live), ledger.positions(live, self.name)
        every = [replace(same(table, described(other, table.name)), begun=begun) for table in tables]
        rejected = replace(rejected, begun=begun)
        every += [rejected, part_of(known, known.names, mine)]
        done = [replace_rows(live, other, table, number) for number, table in enumerate(every)]
        batch_history.add_rebuilt(live, self.name, before)
        return tuple(done[:-1])

    def _goal(self, live: psycopg.Connection[Any] | None = None) -> Mapping[Place, int]:
        """Per partition the offset that has to have been landed: what the live tables have, and what was there at the start."""
        if self._ends is None:
            with said(self._kafka):
                self._ends = offsets.stable_ends(self._kafka, self._reads)
        if live is None:
            with _postgres(self._dsn) as connection:
                held = offsets.last_batches(connection, self.name)
        else:
            held = offsets.last_batches(live, self.name)
        ids = self._ids()
        # Of a topic that was made anew nothing has to be there but what it holds.
        same_log = {place: at.next_offset for place, at in held.items() if ids.get(place[0]) == at.topic_id}
        return {place: max(end, same_log.get(place, 0)) for place, end in self._ends.items()}

    def _ids(self) -> dict[str, str]:
        with said(self._kafka):
            return admin.ask_topic_ids(self._kafka, self._reads)()

    def _since(self, live: psycopg.Connection[Any]) -> tuple[tuple[str, int, int], ...]:
        """Per partition from which offset on its records have made what is replaced: what has not landed yet always has. (): all.

        Raises:
            UserError: the offsets of the live tables are those of another topic, or of a decision log (exit code 3).
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
        """Raises UserError (exit code 3) when rows may have come from records that are gone: they would be deleted."""
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
        """Where the outputs were made anew, or rows come from a decision log: how many offsets of the inputs that were there at
        first are not folded. Tables that are replaced before would go back in time.
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
        """Those that a rebuild can fill, and the names of those that it cannot.

        Raises:
            UserError: exit code 3: a table has rows that can be told apart only by themselves, or rows of another pipeline.
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
    """Empty, and with the order of texts that the live one has: merges may compare by it."""
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
    """{} before the sink has made its tables."""
    try:
        return offsets.landed(dsn, sink)
    except psycopg.Error as error:
        raise of_postgres(error, "PostgreSQL does not answer", "Nothing was changed; run it again.") from None


@contextmanager
def _postgres(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of its own, in autocommit mode."""
    try:
        with postgres.connect(dsn, "onefold rebuild", settings=_SETTINGS, patience_s=_PATIENCE_S) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise of_postgres(error, "PostgreSQL does not answer", "Nothing was changed; run it again.") from None
