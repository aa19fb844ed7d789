"""The logins of services in the embedded PostgreSQL, also in a data directory of a release with one superuser."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onefold.config.settings import Settings
from onefold.operate import grants, pipelines
from onefold.rights import Role
from onefold.stack import accounts, plan
from onefold.stack.child import Child
from onefold.stack.ports import free_ports
from onefold.stack.postgres import ROLES, Postgres
from tests.support.command_line import ROOT
from tests.support.guarded import TLS_PROGRAMS
from tests.support.waiting import eventually

pytestmark = [pytest.mark.promise("stack-roles"), pytest.mark.slow]  # starts a server a test

PIPELINE = "campaigns"
#: What a user of an earlier release may have made, all of it as the superuser.
MADE = """
CREATE SCHEMA shop;
CREATE TYPE shop.colour AS ENUM ('red');
CREATE DOMAIN shop.cents AS bigint;
CREATE TYPE shop.pair AS (a int, b int);
CREATE TABLE shop.items (id serial PRIMARY KEY, price shop.cents, colour shop.colour);
CREATE VIEW shop.dear AS SELECT * FROM shop.items WHERE price > 9;
CREATE MATERIALIZED VIEW shop.all_items AS SELECT * FROM shop.items;
CREATE SEQUENCE "Odd name";
CREATE FUNCTION shop.one() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TABLE kept AS SELECT 42 AS answer;
INSERT INTO shop.items (price) VALUES (10);
"""
#: The names of what the superuser owns, beside what initdb has made.
OWNED = """
SELECT relname FROM pg_class WHERE oid >= 16384 AND relowner = 10 AND relnamespace <> 'pg_toast'::regnamespace
UNION ALL SELECT nspname FROM pg_namespace WHERE oid >= 16384 AND nspowner = 10
UNION ALL SELECT proname FROM pg_proc WHERE oid >= 16384 AND proowner = 10
UNION ALL SELECT typname FROM pg_type WHERE oid >= 16384 AND typowner = 10 AND typnamespace <> 'pg_toast'::regnamespace
UNION ALL SELECT datname FROM pg_database WHERE datname = current_database() AND datdba = 10
"""


@contextmanager
def running(server: Postgres) -> Iterator[None]:
    child = Child(server.service(server.home / "postgres.log"))
    child.start()
    try:
        child.wait_ready()
        yield
    finally:
        child.ask_to_stop()
        child.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    made = Postgres(tmp_path / "postgres", free_ports(1)[0])
    made.prepare()
    yield made
    made.wipe()


def ask(dsn: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def do(dsn: str, statements: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(statements.encode())


def prepared(dsn: str) -> None:
    """Tables and rights, as `onefold migrate` makes them."""
    settings = Settings(postgres_dsn=dsn)
    pipelines.migrate_engine(settings)
    pipelines.migrate([PIPELINE], settings)
    pipelines.give_rights([PIPELINE], settings)


def lacks(server: Postgres) -> dict[str, str]:
    """By role the sentence about what its login lacks."""
    declared = [pipelines.found()[PIPELINE]]
    return {role.value: grants.lacking(role, server.logins[role.value], declared, "a test") for role in Role}


HAVE_ALL = {role.value: "" for role in Role}


@pytest.mark.postgres
def test_each_login_has_the_rights_of_its_role_and_no_other(server: Postgres) -> None:
    server.make_logins()
    with running(server):
        logins = server.logins
        prepared(logins["owner"])
        assert lacks(server) == HAVE_ALL
        superusers = ask(logins["reader"], "SELECT rolname FROM pg_roles WHERE rolsuper")
        assert superusers == [("onefold",)], "no service logs in as it"
        passwords = {conninfo_to_dict(dsn)["password"] for dsn in (*logins.values(), server.dsn)}
        assert len(passwords) == len(Role) + 1
        do(logins["owner"], "CREATE TABLE mine (); DROP TABLE mine")
        for role in Role:
            if role is not Role.OWNER:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    do(logins[role.value], "CREATE TABLE mine ()")
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    do(logins[role.value], "DROP TABLE campaigns.totals")
    assert (server.home / "passwords").stat().st_mode & 0o777 == 0o600


@pytest.mark.postgres
def test_a_data_directory_with_one_superuser_is_handed_to_the_owner(server: Postgres) -> None:
    """The superuser's login goes on working, as programs of a user have it."""
    with running(server):
        prepared(server.dsn)
        do(server.dsn, MADE)
    server.make_logins()
    before = server.logins
    server.make_logins()
    assert server.logins == before, "made once"
    with running(server):
        assert ask(server.dsn, OWNED) == []
        owner = server.logins["owner"]
        prepared(owner)
        assert lacks(server) == HAVE_ALL
        do(owner, "ALTER TABLE campaigns.totals ADD COLUMN more int; DROP SCHEMA shop CASCADE")
        assert ask(owner, "SELECT answer FROM kept") == [(42,)]
        do(server.dsn, "CREATE TABLE by_an_old_program ()")


@pytest.mark.postgres
def test_a_crash_of_the_earlier_release_leaves_nothing_that_cannot_be_handed_over(server: Postgres) -> None:
    """Temporary tables of its sessions, which go with the next session of their number."""
    child = Child(server.service(server.home / "postgres.log"))
    child.start()
    child.wait_ready()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE of_a_sink (id serial)")
        assert child.pid is not None
        os.kill(child.pid, signal.SIGQUIT)
        eventually(lambda: child.poll() is not None, 30, "PostgreSQL has ended at once")
    server.make_logins()
    with running(server):
        prepared(server.logins["owner"])
        assert lacks(server) == HAVE_ALL


@pytest.mark.postgres
def test_a_table_of_another_owner_keeps_no_right_from_the_others(server: Postgres) -> None:
    server.make_logins()
    with running(server):
        owner = server.logins["owner"]
        prepared(owner)
        # The owner has this right as a member of the reader, and PostgreSQL only warns when it passes it on.
        do(server.dsn, "CREATE TABLE campaigns.foreign (); GRANT SELECT ON campaigns.foreign TO onefold_reader")
        do(owner, "CREATE TABLE campaigns.mine ()")
        settings = Settings(postgres_dsn=owner)
        assert pipelines.give_rights([PIPELINE], settings) == ['TABLE "campaigns"."foreign"']
        assert lacks(server)["sink"].count("the table") == 1
        assert "SELECT on the table campaigns.foreign" in lacks(server)["sink"]


@pytest.mark.postgres
def test_the_reader_sees_what_the_owner_makes_and_the_owner_may_read_as_the_reader(server: Postgres) -> None:
    """Also in a database of an earlier release, whose schema files gave that right to tables of the superuser."""
    with running(server):
        prepared(server.dsn)
    server.make_logins()
    with running(server):
        owner = server.logins["owner"]
        do(owner, "CREATE SCHEMA shop; CREATE TABLE shop.mine AS SELECT 7 AS answer")
        assert ask(server.logins["reader"], "SELECT answer FROM shop.mine") == [(7,)]
        do(owner, "SET ROLE onefold_reader")


def test_the_names_are_those_of_onefold_grants() -> None:
    assert [f"onefold_{role}" for role in ROLES] == [*grants.NAMES.values()]
    text = (ROOT / "src" / "onefold" / "stack" / "roles.sql").read_text(encoding="utf-8")
    assert f"ARRAY[{', '.join(repr(role) for role in ROLES)}]" in text


def test_each_service_gets_the_login_of_its_role(tmp_path: Path) -> None:
    logins = {role: f"postgresql://onefold_{role}@127.0.0.1/onefold" for role in ROLES}
    public = {"bootstrap_servers": "127.0.0.1:9", "postgres_dsn": logins["owner"], "dashboard": "http://127.0.0.1:8"}
    settings = Settings(home=tmp_path, audited="sheets")

    def given(public: dict[str, Any]) -> dict[str, str]:
        stages = plan.pipeline(settings, ["sheets"], public)
        return {
            service.name.partition("-")[0]: service.environment["ONEFOLD_POSTGRES_DSN"]
            for stage in stages
            for service in stage
        }

    assert given({**public, "postgres_logins": logins}) == {
        "migrate": logins["owner"],
        "processor": logins["reader"],
        "worker": logins["worker"],
        "sink": logins["sink"],
        "auditor": logins["verifier"],
        "dashboard": logins["reader"],
    }
    # a PostgreSQL of the user's own, and a stack that an earlier release has started
    assert {*given({**public, "postgres_logins": {}}).values(), *given(public).values()} == {logins["owner"]}


@pytest.mark.postgres
@pytest.mark.skipif(not TLS_PROGRAMS.exists(), reason=f"the image's PostgreSQL is not installed in {TLS_PROGRAMS}")
def test_the_container_makes_the_logins_at_each_start() -> None:
    """Its start script, with folders of this test in the place of the volume: first an empty one, then with another password."""
    maker = accounts.maker()
    with tempfile.TemporaryDirectory(
        prefix="onefold-open-", dir="/tmp"
    ) as made:  # a test's own folder is closed to `nobody`
        folder, (port,) = Path(made), free_ports(1)
        if maker:
            os.chown(folder, *maker)
        folder.chmod(0o755)
        (folder / "roles.sql").write_bytes((ROOT / "src" / "onefold" / "stack" / "roles.sql").read_bytes())
        script = (ROOT / "images" / "postgres" / "start").read_text(encoding="utf-8")
        for there, here in {
            "/var/lib/postgresql/data/pgdata": f"{folder}/volume",
            "/opt/postgres/roles.sql": f"{folder}/roles.sql",
            "unix_socket_directories=/tmp": f"unix_socket_directories={folder}",
            "listen_addresses='*'": f"listen_addresses=127.0.0.1 -p {port}",
        }.items():
            assert there in script
            script = script.replace(there, here)
        for password in ("first", "it's $another"):
            process = subprocess.Popen(
                ["bash", "-c", script],
                env={
                    "PATH": f"{TLS_PROGRAMS}{os.pathsep}{os.environ['PATH']}",
                    "POSTGRES_PASSWORD": "root",
                    "POSTGRES_SINK_PASSWORD": password,
                },
                user=maker[0] if maker else None, group=maker[1] if maker else None, cwd=folder,
            )  # fmt: skip
            try:
                asked = partial(answer, {"host": "127.0.0.1", "port": port, "dbname": "onefold"})
                eventually(lambda: asked(user="onefold", password="root"), 30, "the server answers")  # noqa: B023
                assert asked(user="onefold_sink", password=password) == "onefold_sink"
                assert asked(user="onefold_owner", password="root") == "onefold_owner", (
                    "without one it is the superuser's"
                )
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(30)


def answer(place: dict[str, Any], **login: str) -> str:
    """As whom PostgreSQL lets this login in; "" if it does not."""
    try:
        with psycopg.connect(make_conninfo(**place, **login)) as connection:
            return str((connection.execute("SELECT current_user").fetchone() or ("",))[0])
    except psycopg.OperationalError:
        return ""
