"""Each service on a real PostgreSQL with exactly the rights that `onefold grants` prints, and with each taken away once."""

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from onefold import postgres
from onefold.cli import main
from onefold.cli.commands import work
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.dashboard import engine, reader
from onefold.error_codes import Code, CodedError
from onefold.exit_codes import OK, REFUSED, UNKNOWN
from onefold.jobs.pending import PostgresPending
from onefold.jobs.protocols import Job, Place
from onefold.operate import answering, auditing, grants, pipelines, positions, queues, verdicts
from onefold.operate.explain import rows
from onefold.operate.rebuild import table_diff
from onefold.pipelines import Found, Pipeline
from onefold.postgres import NoConnect
from onefold.process import ServiceProcess
from onefold.processor.core.errors import Refused
from onefold.rights import ALL_TABLES, Right, Role
from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.landing import known_contracts, landed_batches
from onefold.spark_sink.landing.land import merge
from onefold.spark_sink.plan import Plan
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from onefold.spark_sink.supervisor import QuerySupervisor
from onefold.telemetry import SILENT
from onefold.verify.snapshot import Snapshot
from onefold.verify.verdict import VALID, Verdict
from tests.support import refused
from tests.support.coded import raises
from tests.support.landing import Sink
from tests.support.made_up_domain import MadeUp
from tests.support.refused import domain_in, note, plan_of

pytestmark = pytest.mark.promise("least-rights")

PASSWORD = "a password"


@dataclass(frozen=True)
class Granted:
    """A database with all tables, whose roles have what `onefold grants` prints and nothing else."""

    admin: psycopg.Connection[Any]
    names: Mapping[Role, str]
    dsn: str
    pipeline: Pipeline
    plan: Plan

    def login(self, role: Role) -> str:
        return psycopg.conninfo.make_conninfo(self.dsn, user=self.names[role], password=PASSWORD)

    def statements(self) -> list[grants.Statement]:
        return grants.statements([self.pipeline], self.names, self.admin.info.dbname)

    def take(self, role: Role, right: Right) -> None:
        """Take one right away."""
        (statement,) = [one.sql for one in self.statements() if right in one.rights and one.role is role]
        on = statement.partition(" ON ")[2].replace(" TO ", " FROM ")
        self.admin.execute(f"REVOKE {right.privilege} ON {on}".encode())

    def give_all(self) -> None:
        assert grants.apply(self.admin, self.statements(), self.names) == []

    def fresh(self) -> None:
        """As before the first batch; of a forgotten schema, whose row the sink deletes."""
        name = self.pipeline.name
        engine = "ledger", "rejected", "batch", "contract", "pending", "done"
        tables = [*(f"onefold.{table}" for table in engine), f"{name}.notes"]
        self.admin.execute(f"TRUNCATE {', '.join(tables)}".encode())
        forgotten = "INSERT INTO onefold.contract (sink, topic, header, schema) VALUES (%s, %s, '\\xc301', '{}')"
        self.admin.execute(forgotten, (name, f"{name}.notes"))


@pytest.fixture(scope="module")
def granted(module_database: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Granted]:
    made_up: MadeUp = domain_in(tmp_path_factory.mktemp("grants") / "domain", checkout)
    root = made_up.root
    jobs = {f"{made_up.name}.mails": "shop:MAILS"}
    pipeline = Pipeline(made_up.name, root / "x.toml", "shop:TOPOLOGY", None, root / "avro", root / "sql", jobs=jobs)
    mark = uuid.uuid4().hex[:8]
    names = {role: f"{role.value}_{mark}" for role in Role}
    with psycopg.connect(module_database, autocommit=True) as admin:
        admin.execute(f"REVOKE ALL ON DATABASE {admin.info.dbname} FROM PUBLIC".encode())
        statements = grants.statements([pipeline], names, admin.info.dbname)
        absent = grants.apply(admin, statements, names)
        assert absent[:2] == ["onefold", "onefold.applied"]
        for name in names.values():
            admin.execute(f"ALTER ROLE {name} LOGIN PASSWORD '{PASSWORD}'".encode())
        owner = psycopg.conninfo.make_conninfo(module_database, user=names[Role.OWNER], password=PASSWORD)
        plan = plan_of(made_up, owner)  # makes all tables
        made = Granted(admin, names, module_database, pipeline, plan)
        made.give_all()
        try:
            yield made
        finally:
            for name in names.values():
                admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


@pytest.fixture
def numbered(granted: Granted, tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline whose table has numbers of a sequence, an identity column, and triggers."""
    name = f"numbered_{uuid.uuid4().hex[:8]}"
    (tmp_path / "merge").mkdir()
    merge = f"INSERT INTO {name}.rows (text) SELECT text FROM :stage AS stage"
    (tmp_path / "merge" / f"{name}.texts.sql").write_text(merge, encoding="utf-8")
    trigger = "CREATE TRIGGER {0} BEFORE INSERT ON {1}.rows EXECUTE FUNCTION {1}.{0}();"
    function = "CREATE FUNCTION {1}.{0}() RETURNS trigger LANGUAGE plpgsql {2} AS 'BEGIN RETURN NULL; END';"
    granted.admin.execute(
        f"""
        CREATE SCHEMA {name};
        CREATE SEQUENCE {name}.other;
        CREATE TABLE {name}.rows (
            id serial, place bigint DEFAULT nextval('{name}.other'), number int GENERATED ALWAYS AS IDENTITY, text text
        );
        CREATE SEQUENCE {name}.unused;
        {function.format("as_sink", name, "")}
        {function.format("as_owner", name, "SECURITY DEFINER")}
        {trigger.format("as_sink", name)}
        {trigger.format("as_owner", name)}
        """.encode()
    )
    yield Pipeline(name, tmp_path / "x.toml", "shop:TOPOLOGY", None, tmp_path / "avro", tmp_path)
    granted.admin.execute(f"DROP SCHEMA {name} CASCADE".encode())


def test_the_sink_gets_the_rights_on_sequences_that_a_default_uses(granted: Granted, numbered: Pipeline) -> None:
    """And no others; a trigger is named, for nothing says what its function writes."""
    name, dsn = numbered.name, granted.login(Role.SINK)
    lacks = partial(grants.lacking, Role.SINK, dsn, [numbered], "onefold tests")
    statements = grants.statements([numbered], granted.names, granted.admin.info.dbname)
    grants.apply(granted.admin, statements, granted.names)
    assert f"USAGE on the sequence {name}.other, USAGE on the sequence {name}.rows_id_seq: " in lacks()
    insert = f"INSERT INTO {name}.rows (text) VALUES ('x')".encode()
    with closing(postgres.connect(dsn, "onefold tests")) as sink:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="sequence"):
            sink.execute(insert)
        grants.apply(granted.admin, statements, granted.names, [numbered])
        assert lacks() == ""
        sink.execute(insert)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="unused"):
            sink.execute(f"SELECT nextval('{name}.unused')".encode())
    assert grants.triggers(granted.admin, [numbered]) == [(f"{name}.rows", "as_sink")]


def test_migrate_gives_the_rights_on_sequences_too(
    granted: Granted, numbered: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "NAMES", granted.names)
    assert grants.renew(granted.admin, [numbered]) == []
    assert grants.lacking(Role.SINK, granted.login(Role.SINK), [numbered], "onefold tests") == ""


def owner(granted: Granted, dsn: str) -> None:
    """`migrate` of a pipeline that is new, and the comparison of `rebuild`."""
    root = granted.plan.sql_root
    new = f"new_{uuid.uuid4().hex[:8]}"
    (root / "schema" / f"{new}.01.sql").write_text(
        f"CREATE SCHEMA {new}; CREATE TABLE {new}.t (id bigint PRIMARY KEY)", encoding="utf-8"
    )
    migrate(dsn, ENGINE, ENGINE_SQL)
    assert migrate(dsn, new, root) == [f"{new}.01.sql"]
    with psycopg.connect(dsn) as live, psycopg.connect(dsn) as other:
        table_diff.replace_rows(live, other, table_diff.described(live, f"{new}.t"), 0)


def sink(granted: Granted, dsn: str) -> None:
    """What a sink does from its start to a batch with a row that PostgreSQL refuses."""
    migrate(dsn, ENGINE, ENGINE_SQL)
    migrate(dsn, granted.pipeline.name, granted.plan.sql_root)
    with closing(Sink(dsn, granted.plan).connection) as connection:
        landing = Sink(dsn, granted.plan)
        with closing(landing.connection):
            known_contracts.recognise(connection, granted.plan.domain)
            pipeline = refused.Pipeline(landing, granted.plan, dsn, granted.admin)
            if failure := pipeline.lands(note(100), ('wrong,"x"', ""), note(102)):
                raise failure
            _rehearse(landing, granted.plan)
            connection.execute(landed_batches._PRUNE, {"sink": granted.pipeline.name, "kept": 1, "most": 1})
    assert pipeline.notes() == [(100, "x"), (102, "x")]
    assert pipeline.places() == [(0, 101)]


def _rehearse(landing: Sink, plan: Plan) -> None:
    """Of tables that the batch has no row for."""
    for name, target in plan.domain.targets.items():
        landing.connection.execute("BEGIN")
        landing.connection.execute(merge(target, sql.SQL("(SELECT * FROM {})").format(landing.stage.table(name))))
        landing.connection.execute("ROLLBACK")


def worker(granted: Granted, dsn: str) -> None:
    """A job from its record to `jobs requeue`."""
    migrate(dsn, ENGINE, ENGINE_SQL)
    (queue,) = granted.pipeline.jobs
    with closing(PostgresPending(dsn, "one", granted.pipeline.name)) as pending:
        job = Job(queue, "log", Place(1, 1), {})
        pending.add(job)
        row = pending.find(job)
        assert row is not None
        increment = pending.claim(row, 30.0)
        assert increment is not None
        assert pending.finish(job, increment, {})
        assert pending.remove(job)
        assert pending.done(job)
        assert pending.forget(job, later=False) == 1
        # The effect of a job may read the tables of its pipeline.
        pending._connection.execute(f"SELECT FROM {granted.pipeline.name}.notes".encode())


def looker(granted: Granted, dsn: str) -> None:
    """What the dashboard, `status` and `explain` read."""

    async def page() -> None:
        connection = await reader.connect(dsn)
        await engine.fetch(connection)
        await connection.close()

    asyncio.run(page())
    with psycopg.connect(dsn) as connection:
        positions.last_batches(connection, "x")
        rows.rejected(connection, "x")
        connection.execute(rows._BATCH, ("x", "x", 0, "x", 0))
        known_contracts.stored(connection, "x")
        connection.execute(queues._COUNTS)
        connection.execute(queues._DONE)
        connection.execute(f"SELECT FROM {granted.pipeline.name}.notes".encode())


def verifier(granted: Granted, dsn: str) -> None:
    """What `verify` and `audit` ask the database, and the note for the page."""
    name = granted.pipeline.name
    with Snapshot(dsn) as snapshot:
        snapshot.ledger(name)
        list(snapshot.rejected(name))
        list(snapshot.rows(f"{name}.notes", ("id",)))
    if said := verdicts.keep(Verdict(name, VALID, "a reason"), dsn):
        raise Refused(Code.POSTGRES_RIGHT, said)


PARTS: dict[Role, Callable[[Granted, str], None]] = {
    Role.OWNER: owner,
    Role.SINK: sink,
    Role.WORKER: worker,
    Role.READER: looker,
    Role.VERIFIER: verifier,
}


@pytest.mark.parametrize("role", Role)
def test_each_service_runs_with_exactly_the_rights_that_are_printed(granted: Granted, role: Role) -> None:
    granted.fresh()
    PARTS[role](granted, granted.login(role))


@pytest.mark.slow  # seconds a role
@pytest.mark.parametrize("role", Role)
def test_no_service_runs_without_one_of_its_rights(granted: Granted, role: Role) -> None:
    """And one sentence names the role, the right, the object and the command; nothing is lost."""
    dsn, rights = granted.login(role), grants.rights_of(role, [granted.pipeline])
    for right in rights:
        granted.take(role, right)
        granted.fresh()
        said = _said(granted, role, dsn)
        shown = str(right)
        if right.table == ALL_TABLES:
            shown = f"SELECT on the table {right.schema}.notes"
        if right.privilege == "CONNECT":
            shown = f"CONNECT on the database {granted.admin.info.dbname}"
        assert f"the role {granted.names[role]} of PostgreSQL lacks {shown}" in said, right
        assert "`onefold grants`" in said
        assert "answer" not in said
        with pytest.raises((CodedError, psycopg.errors.InsufficientPrivilege)):  # the database says so too
            PARTS[role](granted, dsn)
        granted.give_all()
    granted.fresh()
    PARTS[role](granted, dsn)


def _said(granted: Granted, role: Role, dsn: str) -> str:
    with suppress(NoConnect), closing(postgres.connect(dsn, "onefold tests")):
        return grants.lacking(role, dsn, [granted.pipeline], "onefold tests")
    with raises(NoConnect, Code.POSTGRES_RIGHT) as told:
        postgres.connect(dsn, "onefold tests")
    assert told.value.exit_code == REFUSED
    return str(told.value)


class Unstarted:
    """A query that is not to be started."""

    name, landed = "made_up", 0

    def start(self) -> None:
        raise AssertionError("it was started")

    def failure(self) -> None:
        return None

    displaced = failure

    def stop(self) -> None:
        """There is nothing to end."""


def test_a_sink_begins_no_query_without_its_rights(granted: Granted) -> None:
    lacks = partial(grants.lacking, Role.SINK, granted.login(Role.SINK), [granted.pipeline], "onefold sink")
    for right in (Right("INSERT", "onefold", "ledger"), Right("CONNECT")):
        granted.take(Role.SINK, right)
        with raises(Refused, Code.POSTGRES_RIGHT, f"lacks {right.privilege} on the"):
            QuerySupervisor(Unstarted(), 1.0, float, lacks).tick()
        granted.give_all()


def test_a_worker_ends_without_its_rights(granted: Granted) -> None:
    work.prepare(granted.login(Role.WORKER), granted.pipeline)
    for right in (Right("DELETE", "onefold", "done"), Right("CONNECT")):
        granted.take(Role.WORKER, right)
        with raises(Refused, Code.POSTGRES_RIGHT, f"lacks {right.privilege} on the"):
            work.prepare(granted.login(Role.WORKER), granted.pipeline)
        granted.give_all()


def test_verify_status_audit_and_prepare_name_the_right(granted: Granted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier cannot tell, and everything else is refused."""
    name = granted.pipeline.name
    monkeypatch.setattr(verdicts, "find", lambda: Found({name: granted.pipeline}))
    monkeypatch.setattr(pipelines, "find", lambda: Found({name: granted.pipeline}))

    def settings(role: Role) -> Settings:
        return Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn=granted.login(role))

    assert answering.postgres(settings(Role.READER)) is None
    granted.take(Role.READER, Right("SELECT", "onefold", "done"))
    code, sentence = answering.postgres(settings(Role.READER)) or (None, "")
    assert (code, "lacks SELECT on the table onefold.done" in sentence) == (Code.POSTGRES_RIGHT, True)

    granted.take(Role.VERIFIER, Right("SELECT", "onefold", "ledger"))
    monkeypatch.setattr(verdicts, "verify", lambda *_, **__: Verdict(name, "unknown", "the database does not answer"))
    verdict = verdicts.ask(settings(Role.VERIFIER), name)
    assert "lacks SELECT on the table onefold.ledger" in verdict.reason
    assert "does not answer" not in verdict.reason
    assert (verdict.exit_code, verdict.code) == (UNKNOWN, str(Code.POSTGRES_RIGHT))
    with ServiceProcess(None) as process, raises(UserError, Code.POSTGRES_RIGHT, "onefold.ledger") as told:
        auditing.audit(settings(Role.VERIFIER), name, SILENT, process)
    assert told.value.exit_code == UNKNOWN

    granted.take(Role.OWNER, Right("CREATE"))
    (granted.plan.sql_root / "schema" / f"{name}.02.sql").write_text("CREATE SCHEMA one_more", encoding="utf-8")
    with raises(UserError, Code.POSTGRES_RIGHT, "permission denied for database") as told:
        pipelines.migrate([name], settings(Role.OWNER))
    assert told.value.exit_code == REFUSED
    assert granted.names[Role.OWNER] in str(told.value)
    granted.give_all()
    assert pipelines.migrate([name], settings(Role.OWNER)) == [f"{name}.02.sql"]


def test_a_sink_of_another_role_leaves_what_is_not_its_own(granted: Granted) -> None:
    """Tables of sinks before decision 83: each role drops those that it owns."""
    sinks = [granted.names[Role.SINK], granted.names[Role.WORKER]]
    for number, owner in enumerate(sinks):
        granted.admin.execute(f"CREATE UNLOGGED TABLE onefold_stage.s{number}_1 (); ".encode())
        granted.admin.execute(f"ALTER TABLE onefold_stage.s{number}_1 OWNER TO {owner}".encode())
    granted.admin.execute(f"GRANT USAGE ON SCHEMA onefold_stage TO {sinks[0]}".encode())
    Sink(granted.login(Role.SINK), granted.plan).connection.close()
    left = granted.admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'onefold_stage'").fetchall()
    assert left == [("s1_1",)]


def test_the_command_prints_what_it_applies(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex[:8]
    options = [text for role in Role for text in (f"--{role.value}", f"{role.value}_{mark}")]
    monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", database)
    assert main.run(["grants", "trades", *options]) == OK
    printed = capsys.readouterr().out
    assert f'GRANT INSERT, UPDATE ON TABLE "trades"."risk" TO "sink_{mark}";' in printed
    assert f'GRANT DELETE, INSERT ON TABLE "trades"."landed" TO "sink_{mark}";' in printed
    with psycopg.connect(database, autocommit=True) as admin:
        try:
            for _ in range(2):
                assert main.run(["grants", "trades", *options, "--apply"]) == OK
                assert f"Run `onefold migrate` as owner_{mark}" in capsys.readouterr().out
            found = admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname LIKE %s", (f"%{mark}",)).fetchall()
            assert found == [(False,)] * 5
            admin.execute(f"ALTER ROLE sink_{mark} SUPERUSER".encode())
            assert main.run(["grants", "trades", *options, "--apply"]) == REFUSED
            assert f"the role sink_{mark} is a superuser" in capsys.readouterr().err
            assert main.run(["grants", "trades", "--sink", "one", "--worker", "one"]) == 2
        finally:
            for role in Role:
                admin.execute(f"DROP OWNED BY {role.value}_{mark}; DROP ROLE {role.value}_{mark}".encode())
