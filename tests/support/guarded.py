"""A broker with listeners that refuse their clients for different reasons, and with an authorizer."""

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in a way that a type checker sees
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from onefold.config import private_files
from onefold.operate.acls import CONFIGS, DESCRIBE, GROUP, TOPIC, TRANSACTIONAL_ID, Acl
from onefold.stack.broker import Broker
from onefold.stack.child import Child
from onefold.stack.embedded import Infrastructure
from onefold.stack.ports import free_ports
from onefold.stack.postgres import PostgresServer
from tests.support.certificates import Authority, Identity

#: May do nothing but what the broker's administrator allows.
USER = "ann"
#: May do everything.
ROOT = "root"
PASSWORD = "a password"
SCRAM = "SCRAM-SHA-512"
LISTENERS = ("PASSWORD", "OPEN", "TLS", "MUTUAL", "EXPIRED", "ELSEWHERE", "LOST", "AWAY")
_ANSWER_S = 20.0
_MODULES = "org.apache.kafka.common.security"
# No name server has it (RFC 6761).
NO_SUCH_HOST = "kafka-1.invalid"
KINDS = {
    TOPIC: ResourceType.TOPIC,
    GROUP: ResourceType.GROUP,
    TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
}
OPERATIONS = {
    "Read": AclOperation.READ, "Write": AclOperation.WRITE, "Create": AclOperation.CREATE, "Delete": AclOperation.DELETE,
    DESCRIBE: AclOperation.DESCRIBE, CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}  # fmt: skip
#: The PostgreSQL of the wheel has no TLS. Debian's package postgresql-15 has.
TLS_PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def binding(acl: Acl, principal: str = USER, kind: Any = AclBinding) -> Any:
    """An ACL, or a filter for it, as the admin client takes it."""
    pattern = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    operation = OPERATIONS[acl.operation]
    return kind(KINDS[acl.kind], acl.name, pattern, f"User:{principal}", "*", operation, AclPermissionType.ALLOW)


@dataclass(frozen=True)
class Guarded(Broker):
    """The embedded broker with these listeners beside its own. The own one's clients may do everything.

    Args:
        ports: of the listeners PASSWORD (SASL_SSL), OPEN (SASL_PLAINTEXT, a login holds for a second), TLS, MUTUAL (TLS, wants
            a client certificate), EXPIRED, ELSEWHERE (a certificate of another address), LOST and AWAY (which advertise a name
            that does not resolve, and a port where nothing listens).
        closed_port: nothing listens there.
    """

    ports: dict[str, int]
    closed_port: int
    authority: Authority

    def configuration(self, data: Path) -> str:
        """What comes last counts."""
        protocols = {"PASSWORD": "SASL_SSL", "OPEN": "SASL_PLAINTEXT", "LOST": "PLAINTEXT", "AWAY": "PLAINTEXT"}
        plain = f"PLAINTEXT://{self.bootstrap_servers}"
        advertised = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        advertised |= {"LOST": f"{NO_SUCH_HOST}:{self.ports['LOST']}", "AWAY": f"127.0.0.1:{self.closed_port}"}
        issue = self.authority.issue
        lines: dict[str, object] = {
            "listeners": ",".join(
                [
                    plain,
                    f"CONTROLLER://127.0.0.1:{self.controller_port}",
                    *(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
                ]
            ),
            "advertised.listeners": ",".join([plain, *(f"{name}://{at}" for name, at in advertised.items())]),
            "listener.security.protocol.map": ",".join(
                ["PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"]
                + [f"{name}:{protocols.get(name, 'SSL')}" for name in self.ports]
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": issue("broker").both,
            "listener.name.expired.ssl.keystore.type": "PEM",
            "listener.name.expired.ssl.keystore.location": issue("expired", expired=True).both,
            "listener.name.elsewhere.ssl.keystore.type": "PEM",
            "listener.name.elsewhere.ssl.keystore.location": issue("elsewhere", address="127.0.0.2").both,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "listener.name.mutual.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ROOT}",
            "listener.name.open.connections.max.reauth.ms": 1000,
        }
        for name in ("password", "open"):
            lines |= {
                f"listener.name.{name}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
                f"listener.name.{name}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
                f"listener.name.{name}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required;",
            }
        return super().configuration(data) + "".join(f"{name}={value}\n" for name, value in lines.items())

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def client(self, listener: str, **changed: str) -> dict[str, str]:
        """Settings with which `USER` gets in where anybody does.

        Args:
            changed: settings with underscores for dots; an empty one is left out.
        """
        settings = {"bootstrap.servers": f"127.0.0.1:{self.ports[listener]}"}
        if listener in ("PASSWORD", "OPEN"):
            settings |= {"sasl.mechanism": SCRAM, "sasl.username": USER, "sasl.password": PASSWORD}
        if listener not in ("OPEN", "LOST", "AWAY"):
            settings |= {"security.protocol": "ssl", "ssl.ca.location": str(self.authority.file)}
        if listener in ("PASSWORD", "OPEN"):
            settings["security.protocol"] = "sasl_ssl" if listener == "PASSWORD" else "sasl_plaintext"
        settings |= {name.replace("_", "."): value for name, value in changed.items()}
        return {name: value for name, value in settings.items() if value}

    def set_password(self, user: str, password: str) -> None:
        """Of a SCRAM login."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(user, info, password.encode(), secrets.token_bytes(16))
        admin = self._admin()
        admin.alter_user_scram_credentials([wanted])[user].result(_ANSWER_S)

    def grant(self, principal: str, acls: Iterable[Acl]) -> None:
        """Let a principal do what these ACLs say."""
        admin = self._admin()
        bindings = [binding(acl, principal) for acl in acls]
        for answer in admin.create_acls(bindings).values():
            answer.result(_ANSWER_S)

    def allow(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Let `USER` do an operation on all resources of a kind with this prefix; "": on all."""
        pattern = ResourcePatternType.PREFIXED if name else ResourcePatternType.LITERAL
        binding: Any = AclBinding(kind, name or "*", pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        admin = self._admin()
        admin.create_acls([binding])[binding].result(_ANSWER_S)

    @contextmanager
    def denied(self, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
        """Meanwhile `USER` may not do that, whatever else is allowed."""
        literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
        binding: Any = AclBinding(kind, name, literal, f"User:{USER}", "*", operation, deny)
        ended: Any = AclBindingFilter(kind, name, literal, f"User:{USER}", "*", operation, deny)
        admin = self._admin()
        admin.create_acls([binding])[binding].result(_ANSWER_S)
        try:
            yield
        finally:
            admin.delete_acls([ended])[ended].result(_ANSWER_S)


@contextmanager
def guarded(infrastructure: Infrastructure, home: Path) -> Iterator[Guarded]:
    """A broker of this kind that runs, with its data in `home`."""
    ours = infrastructure.broker
    port, controller, closed, *ports = free_ports(3 + len(LISTENERS))
    broker = Guarded(
        home / "kafka", port, controller, ours.java, ours.jars,
        ports=dict(zip(LISTENERS, ports, strict=True)), closed_port=closed, authority=Authority(home),
    )  # fmt: skip
    broker.prepare()
    child = Child(broker.service(home / "kafka.log"))
    child.start()
    try:
        child.wait_ready()
        for user in (USER, ROOT):
            broker.set_password(user, PASSWORD)
        yield broker
    finally:
        child.ask_to_stop()
        child.stop()


@contextmanager
def postgres_over_tls(home: Path, identity: Identity) -> Iterator[str]:
    """The DSN of the superuser of a PostgreSQL that takes sessions over TLS alone, with its data in `home`."""
    (port,) = free_ports(1)
    server = PostgresServer(home / "postgres", port, TLS_PROGRAMS, ("--locale=C",))
    server.prepare()
    with (server.data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write("ssl = on\n")
    rule = "hostssl all all 127.0.0.1/32 scram-sha-256\n"
    chain, key = (file.read_text(encoding="utf-8") for file in (identity.chain, identity.key))
    for name, text in {"server.crt": chain, "server.key": key, "pg_hba.conf": rule}.items():
        private_files.write(server.data / name, text)
        if server.account:
            os.chown(server.data / name, *server.account)
    child = Child(server.service(home / "postgres.log"))
    child.start()
    try:
        child.wait_ready()
        yield server.dsn
    finally:
        child.ask_to_stop()
        child.stop()
        server.wipe()
