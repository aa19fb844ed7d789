"""The secured profile of docs/rights.md: each service with a login of its own, the printed rights and TLS on every connection."""

import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onefold.cli import main
from onefold.exit_codes import OK, REFUSED
from onefold.operate import grants
from onefold.operate.acls import Acl, KafkaService
from onefold.rights import DatabaseRole
from onefold.stack.embedded import Infrastructure
from tests.support.certificates import Authority
from tests.support.command_line import Onefold
from tests.support.guarded import PASSWORD, ROOT, SCRAM, TLS_PROGRAMS, Guarded, guarded, postgres_over_tls
from tests.support.made_up_domain import MadeUp
from tests.support.sink import LANDED_IN_S
from tests.support.sink_children import children, of_a_sink
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.promise("secured-profile"),
    pytest.mark.skipif(not TLS_PROGRAMS.exists(), reason=f"no PostgreSQL with TLS is installed in {TLS_PROGRAMS}"),
]

PIPELINE = "sheets"
MTLS = "mTLS"
EVENTS = 200
STOP_S = 60.0
#: By service the role of PostgreSQL that it logs in as a member of. The others need no PostgreSQL.
ROLES = {
    KafkaService.OPERATOR: DatabaseRole.OWNER,
    KafkaService.SINK: DatabaseRole.SINK,
    KafkaService.WORKER: DatabaseRole.WORKER,
    KafkaService.READER: DatabaseRole.READER,
    KafkaService.VERIFIER: DatabaseRole.VERIFIER,
}
#: By command the service that it is, or runs as.
SERVICES = {
    "migrate": KafkaService.OPERATOR,
    "process": KafkaService.PROCESSOR,
    "sink": KafkaService.SINK,
    "work": KafkaService.WORKER,
    "produce": KafkaService.PRODUCER,
    "status": KafkaService.READER,
    "verify": KafkaService.VERIFIER,
}
#: Of a command that asks no server.
SERVERS = {"ONEFOLD_BOOTSTRAP_SERVERS": "127.0.0.1:9"}
Run = Callable[..., str]


@dataclass
class Profile:
    """A broker with an authorizer, a PostgreSQL over TLS, and a login for each service in both.

    Attributes:
        way: how services log in to Kafka, `SCRAM` or `MTLS`.
        admin: the DSN of the superuser.
    """

    way: str
    broker: Guarded
    admin: str
    onefold: Onefold

    def principal(self, service: KafkaService) -> str:
        """As Kafka calls the service."""
        return f"onefold-{service.value}" if self.way == SCRAM else f"CN=onefold-{service.value}"

    def kafka(self, service: KafkaService) -> dict[str, str]:
        """The Kafka settings of a service, whose login is made."""
        name = f"onefold-{service.value}"
        if self.way == SCRAM:
            self.broker.set_password(name, PASSWORD)
            return self.broker.client("PASSWORD", sasl_username=name, sasl_password=PASSWORD)
        mine = self.broker.authority.issue(name)
        files = {"ssl_certificate_location": str(mine.chain), "ssl_key_location": str(mine.key)}
        return self.broker.client("MUTUAL", **files)

    def dsn(self, user: str) -> str:
        """The address of PostgreSQL for a login."""
        tls = {"sslmode": "verify-full", "sslrootcert": str(self.broker.authority.file)}
        return make_conninfo(self.admin, user=user, password=PASSWORD, **tls)

    def settings(self, command: str) -> dict[str, str]:
        """The environment of a command: its secrets are in files."""
        service = SERVICES[command]
        options, folder = self.kafka(service), self.onefold.home / command
        folder.mkdir(exist_ok=True)
        servers = options.pop("bootstrap.servers")
        files = {"KAFKA_OPTIONS": json.dumps(options)}
        if service in ROLES:
            files["POSTGRES_DSN"] = self.dsn(f"{service.value}_1")
        for name, secret in files.items():
            (folder / name).write_text(secret, encoding="utf-8")
        named = {f"ONEFOLD_{name}_FILE": str(folder / name) for name in files}
        return {**named, "ONEFOLD_BOOTSTRAP_SERVERS": servers, "ONEFOLD_SPARK_MASTER": "local[2]"}

    def make_logins(self) -> None:
        """Those of PostgreSQL, as docs/rights.md has them."""
        with psycopg.connect(self.admin, autocommit=True) as admin:
            admin.execute(f"REVOKE ALL ON DATABASE {admin.info.dbname} FROM PUBLIC".encode())
            for service, role in ROLES.items():
                login, name = f"{service.value}_1", grants.NAMES[role]
                admin.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}' IN ROLE {name}".encode())
            owner = f"{KafkaService.OPERATOR.value}_1"
            admin.execute(f"ALTER ROLE {owner} SET role = {grants.NAMES[DatabaseRole.OWNER]}".encode())

    def give_rights_in_kafka(self, printed: str) -> None:
        """What `onefold acls --format json` has printed."""
        for service in json.loads(printed).values():
            self.broker.grant(service["principal"], [Acl(**acl) for acl in service["acls"]])


@pytest.fixture(scope="module")
def broker(infrastructure: Infrastructure, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(infrastructure, tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
def profile(broker: Guarded, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Profile]:
    (tmp_path / "home").mkdir()
    with postgres_over_tls(tmp_path, broker.authority.issue("postgres")) as admin:
        yield Profile(request.param, broker, admin, Onefold(tmp_path / "home"))


@pytest.fixture
def run(profile: Profile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, with the login of its service unless other settings are given. Returns its output."""
    monkeypatch.setenv("ONEFOLD_HOME", str(profile.onefold.home))

    def run(*words: str, code: int = OK, **settings: str) -> str:
        with monkeypatch.context() as patched:
            for name, value in (settings or profile.settings(words[0])).items():
                patched.setenv(name, value)
            found = main.run([*words])
        said = capsys.readouterr()
        assert found == code, said.out + said.err
        return said.out

    return run


@contextmanager
def served(profile: Profile, *commands: str) -> Iterator[None]:
    """The services run, each as a process with its own login."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for command in commands:
            status = str(profile.onefold.home / f"{command}.json")
            settings = {**profile.settings(command), "ONEFOLD_STATUS_FILE": status}
            started[command] = profile.onefold.start(command, PIPELINE, **settings)
        yield
        for process in started.values():
            process.terminate()
        assert {command: process.wait(STOP_S) for command, process in started.items()} == dict.fromkeys(commands, OK)
    except BaseException as error:
        for command in started:
            error.add_note((profile.onefold.home / f"{command}.out").read_text(encoding="utf-8")[-4000:])
        raise
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def rows(profile: Profile, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(profile.admin) as connection:
        return connection.execute(query.encode()).fetchall()


@pytest.mark.spark
@pytest.mark.parametrize("profile", [SCRAM, pytest.param(MTLS, marks=pytest.mark.long)], indirect=True)
def test_a_pipeline_runs_with_a_login_for_each_service(profile: Profile, run: Run) -> None:
    """Processor, worker, and the Spark sink with Java's client of Kafka, from the administrator's first step to a verdict."""
    users = [f"--user={service.value}={profile.principal(service)}" for service in KafkaService]
    profile.give_rights_in_kafka(run("acls", PIPELINE, "--json", *users, **SERVERS))
    run("grants", PIPELINE, "--apply", ONEFOLD_POSTGRES_DSN=profile.admin)
    profile.make_logins()
    run("migrate", PIPELINE)
    run("grants", PIPELINE, "--apply", ONEFOLD_POSTGRES_DSN=profile.admin)
    with served(profile, "process", "sink", "work"):
        run("produce", f"{PIPELINE}.edits", "--count", str(EVENTS), "--yes")
        verdict = json.loads(run("verify", PIPELINE, "--timeout", "120", "--json"))
        sessions = rows(
            profile, "SELECT DISTINCT usename, ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl"
        )
        # As its rights are of one pipeline.
        shown = json.loads(run("status", "--json", code=REFUSED))
    assert verdict["outcome"] == "valid", verdict["reason"]
    assert verdict["counts"]["records"] >= EVENTS
    assert verdict["rows"] > 0
    assert {("sink_1", True), ("worker_1", True)} <= {*sessions}
    assert shown["lag"][PIPELINE]["events"] == 0
    assert rows(profile, "SELECT count(*) FROM onefold.done")[0][0] > 0
    superusers = rows(profile, "SELECT rolname FROM pg_roles WHERE rolsuper")
    assert superusers == [("onefold",)], "the administrator alone"


@pytest.fixture
def domain_servers(broker: Guarded) -> str:
    """Where the made-up domain has its topics."""
    return broker.bootstrap_servers


@pytest.mark.spark
@pytest.mark.long
def test_a_sink_that_runs_names_a_wrong_password_and_goes_on_when_it_is_right_again(
    broker: Guarded,
    infrastructure: Infrastructure,
    made_up: MadeUp,
    database: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Without a restart: the status has the reason meanwhile."""
    made_up.create_topics(partitions=2)
    client = broker.client("OPEN", sasl_username=ROOT)
    options = {
        **of_a_sink(infrastructure, database, tmp_path),
        "domains": [made_up.name],
        "root": str(tmp_path),
        "kafka_options": client,
        "bootstrap_servers": client.pop("bootstrap.servers"),
    }
    with children(options, environment, tmp_path) as start:
        sink = start()
        made_up.send(range(10))
        eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "the sink writes")
        broker.set_password(ROOT, "another password")
        try:
            made_up.send(range(100, 110))
            refused = f"refuses user {ROOT}: "
            eventually(lambda: refused in sink.status().get("detail", ""), LANDED_IN_S, "the status says why")
        finally:
            broker.set_password(ROOT, PASSWORD)
        eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "the sink goes on")
        assert sink.process.poll() is None


@pytest.mark.spark
@pytest.mark.long
def test_a_sink_takes_new_passwords_of_kafka_and_postgresql_without_a_restart(
    broker: Guarded,
    infrastructure: Infrastructure,
    made_up: MadeUp,
    database: str,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    """Its query begins again with the logins that the files have then."""
    made_up.create_topics(partitions=2)
    user, file = f"sink_{uuid.uuid4().hex[:8]}", tmp_path / "logins.json"
    client = broker.client("OPEN", sasl_username=ROOT)
    servers = client.pop("bootstrap.servers")

    def write_logins(password: str) -> dict[str, Any]:
        found = {
            "kafka_options": {**client, "sasl.password": password},
            "postgres_dsn": make_conninfo(database, user=user, password=password),
        }
        file.write_text(json.dumps(found), encoding="utf-8")
        return found

    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{PASSWORD}'".encode())
        options = {
            **of_a_sink(infrastructure, database, tmp_path),
            **write_logins(PASSWORD),
            "domains": [made_up.name],
            "root": str(tmp_path),
            "bootstrap_servers": servers,
            "renewed": str(file),
        }
        with children(options, environment, tmp_path) as start:
            sink = start()
            made_up.send(range(10))
            eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "the sink writes")
            broker.set_password(ROOT, "another password")
            try:
                admin.execute(f"ALTER ROLE {user} PASSWORD 'another password'".encode())
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (user,))
                write_logins("another password")
                made_up.send(range(100, 110))
                eventually(lambda: made_up.is_landed(database), LANDED_IN_S, "the sink goes on")
                assert sink.process.poll() is None
            finally:
                broker.set_password(ROOT, PASSWORD)
        # The server drops the temporary tables of a killed session a moment later.
        sessions = "SELECT FROM pg_stat_activity WHERE usename = %s"
        eventually(lambda: not admin.execute(sessions, (user,)).fetchall(), 30, "no session of the sink is left")
        admin.execute(f"REASSIGN OWNED BY {user} TO CURRENT_USER; DROP OWNED BY {user}; DROP ROLE {user}".encode())


def test_postgresql_names_what_is_wrong_with_a_login_or_a_certificate(
    broker: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the server, in one true sentence; the same command works when that is mended."""
    issue = broker.authority.issue
    (tmp_path / "other").mkdir()
    other = str(Authority(tmp_path / "other", "another authority").file)
    monkeypatch.setenv("ONEFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("ONEFOLD_BOOTSTRAP_SERVERS", broker.bootstrap_servers)

    def status(dsn: str) -> str:
        monkeypatch.setenv("ONEFOLD_POSTGRES_DSN", dsn)
        code, said = main.run(["status"]), capsys.readouterr()
        assert code == (REFUSED if said.err else OK), said.out + said.err
        assert "does not answer" not in said.err
        return said.err

    refused = "opens no session: SSL error: certificate verify failed"
    with postgres_over_tls(tmp_path / "good", issue("postgres")) as admin:
        good = make_conninfo(admin, sslmode="verify-full", sslrootcert=str(broker.authority.file))
        for says, changed in {
            'opens no session: password authentication failed for user "onefold"': {"password": "x"},
            f"{refused} (self-signed certificate in certificate chain)": {"sslrootcert": other},
            "opens no session: no pg_hba.conf entry for host": {"sslmode": "disable"},
        }.items():
            assert says in status(make_conninfo(good, **changed))
        assert status(good) == ""
    for name, says, how in (
        ("expired", f"{refused} (certificate has expired)", {"expired": True}),
        ("elsewhere", "does not match host name", {"address": "127.0.0.2"}),
    ):
        with postgres_over_tls(tmp_path / name, issue(name, **how)) as admin:
            assert says in status(make_conninfo(admin, sslmode="verify-full", sslrootcert=str(broker.authority.file)))
