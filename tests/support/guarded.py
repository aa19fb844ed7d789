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

#: A user with no rights except those granted by the administrator.
USER = "ann"
#: A user with all rights.
ROOT = "root"
PASSWORD = "a password"
SCRAM = "SCRAM-SHA-512"
LISTENERS = ("PASSWORD", "OPEN", "TLS", "MUTUAL", "EXPIRED", "ELSEWHERE", "LOST", "AWAY")
_ANSWER_S = 20.0
_MODULES = "org.apache.kafka.common.security"
# Not resolved by any name server (RFC 6761).
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
#: PostgreSQL with TLS from Debian's package postgresql-15; the wheel's PostgreSQL has no TLS.
TLS_PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def binding(acl: Acl, principal: str = USER, kind: Any = AclBinding) -> Any:
    """Build an ACL, or a filter for an ACL, for the admin client."""
    pattern = ResourcePatternType.PREFIXED if acl.prefixed else ResourcePatternType.LITERAL
    operation = OPERATIONS[acl.operation]
    return kind(KINDS[acl.kind], acl.name, pattern, f"User:{principal}", "*", operation, AclPermissionType.ALLOW)


@dataclass(frozen=True)
class Guarded(Broker):
    """The embedded broker with additional listeners. Clients of the original listener may do everything.

    Args:
        ports: of the listeners PASSWORD (SASL_SSL), OPEN (SASL_PLAINTEXT, with a login valid for a second), TLS, MUTUAL (TLS
            with a required client certificate), EXPIRED, ELSEWHERE (certificate of another address), LOST (advertises an
            unknown name) and AWAY (advertises a port without listener).
        closed_port: a port without listener.
    """

    ports: dict[str, int]
    closed_port: int
    authority: Authority

    def configuration(self, data: Path) -> str:
        """Configuration in which later lines override earlier ones."""
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
        """Settings with which `USER` can connect, if the listener works at all.

        Args:
            changed: settings with underscores for dots; an empty value removes the setting.
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
        """Set the password of a SCRAM login."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = UserScramCredentialUpsertion(user, info, password.encode(), secrets.token_bytes(16))
        admin = self._admin()
        admin.alter_user_scram_credentials([wanted])[user].result(_ANSWER_S)

    def grant(self, principal: str, acls: Iterable[Acl]) -> None:
        """Grant these ACLs to a principal."""
        admin = self._admin()
        bindings = [binding(acl, principal) for acl in acls]
        for answer in admin.create_acls(bindings).values():
            answer.result(_ANSWER_S)

    def allow(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Allow `USER` an operation on all resources of a kind with this prefix; "": on all."""
        pattern = ResourcePatternType.PREFIXED if name else ResourcePatternType.LITERAL
        binding: Any = AclBinding(kind, name or "*", pattern, f"User:{USER}", "*", operation, AclPermissionType.ALLOW)
        admin = self._admin()
        admin.create_acls([binding])[binding].result(_ANSWER_S)

    @contextmanager
    def denied(self, kind: ResourceType, name: str, operation: AclOperation) -> Iterator[None]:
        """Deny `USER` an operation within the block, whatever else is allowed."""
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
    """Run such a broker with data in `home`."""
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
    """Run a PostgreSQL that requires TLS, with data in `home`. Yields the superuser's connection string."""
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
