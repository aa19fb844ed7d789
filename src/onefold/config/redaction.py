"""What may be printed of a setting that holds a password: everything but that."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from psycopg.pq import ConninfoOption

UNREADABLE = "(a connection string that cannot be read)"
URLS = ("postgresql://", "postgres://")
# libpq marks what should not be shown, and keeps these for itself all the same.
SECRET = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
HIDDEN = b"*"  # how libpq marks it
HIDDEN_VALUE = "***"  # what stands in its place
# Only in front of another scheme: a password may have a comma too.
NEXT_URL = re.compile(r",(?=\w+://)")
# Letters, digits and escapes, one host, no options: what everybody reads alike.
_WORD = "(?:[A-Za-z0-9._~-]|%(?!00)[0-9A-Fa-f]{2})"
PLAIN = f"postgres(?:ql)?://{_WORD}+(?::{_WORD}*)?@[A-Za-z0-9._-]+(?::[1-9][0-9]{{0,3}})?/{_WORD}+"
PORT_MAX = 65535
# Options of Kafka clients with one of these words in their names hold a secret.
SECRET_WORDS = ("password", "secret", "jaas", "oauthbearer.config", "pem")


def dsn(text: str) -> str:
    """The connection string without its secrets, in the form that it had. It still works for who has the password
    elsewhere, as in PGPASSWORD or ~/.pgpass. One that cannot be read is not repeated.
    """
    from psycopg import conninfo

    try:
        check_dsn(text)
    except ValueError:
        return UNREADABLE
    shown = {option.keyword.decode(): (option.val or b"").decode() for option in _given(text) if not _is_secret(option)}
    return _url(shown) if text.startswith(URLS) else conninfo.make_conninfo(**shown)


def check_dsn(text: str) -> None:
    """Raises ValueError, which repeats nothing of it, for a connection string that cannot be read, or that libpq would
    read otherwise than it was meant: then half of a password is a host, and in every error that names the host.
    """
    if re.fullmatch(PLAIN, text):
        return  # without the client of Postgres, which is a fifth of a processor's start, and of which that has no use
    from psycopg import OperationalError

    try:
        values = {option.keyword: (option.val or b"").decode() for option in _given(text)}
    except OperationalError:
        raise ValueError("it should be postgresql://user:password@host:port/database, or name=value pairs") from None
    given = values.keys()
    for port in filter(None, values.get(b"port", "").split(",")):
        if not (port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX):
            raise ValueError(f"its port is no number between 1 and {PORT_MAX}")
    before_options = text.partition("?")[0]
    if text.startswith(URLS) and before_options.count("@") > (1 if given & {b"user", b"password"} else 0):
        raise ValueError("a character with a meaning of its own in user or password is written as %40 for @, %2F for /")


def options(kafka_options: Mapping[str, str]) -> dict[str, str]:
    """The options of a Kafka client, with `HIDDEN_VALUE` in the place of those that are secret."""
    return {
        name: HIDDEN_VALUE if any(word in name for word in SECRET_WORDS) else value
        for name, value in kafka_options.items()
    }


def spark_options(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark, with `HIDDEN_VALUE` in the place of those that Spark itself hides."""
    from onefold.spark_sink.spark.options import is_secret

    return {name: HIDDEN_VALUE if is_secret(name) or is_secret(value) else value for name, value in given.items()}


def address(text: str) -> str:
    """An address without the password in front of its host, with a scheme or without, or several with commas between them; a
    text without an account as it is.
    """
    return ",".join(map(_address, NEXT_URL.split(text)))


def _address(text: str) -> str:
    begin, separator, rest = text.rpartition("://")
    # Without a scheme there is no path either, and a / is of a password.
    account, at, _ = (rest.partition("/")[0] if separator else rest).rpartition("@")
    if ":" not in account:
        return text
    return f"{begin}{separator}{account.partition(':')[0]}:{HIDDEN_VALUE}@{rest[len(account) + len(at) :]}"


def scrub(text: str, kafka_options: Mapping[str, str]) -> str:
    """A text in which no secret of the Kafka options is left."""
    for name, value in kafka_options.items():
        if value and any(word in name for word in SECRET_WORDS):
            text = text.replace(value, HIDDEN_VALUE)
    return text


def _given(text: str) -> list[ConninfoOption]:
    from psycopg.pq import Conninfo

    return [option for option in Conninfo.parse(text.encode()) if option.val is not None]


def _is_secret(option: ConninfoOption) -> bool:
    return option.dispchar == HIDDEN or option.keyword.decode() in SECRET


def _url(shown: dict[str, str]) -> str:
    user, database = shown.pop("user", ""), shown.pop("dbname", "")
    hosts, ports = shown.pop("host", "").split(","), shown.pop("port", "").split(",")
    if len(ports) == 1:  # one port for all hosts, also where it was an option
        ports *= len(hosts)
    places = [_host(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)]
    options = "&".join(f"{name}={quote(value, safe='/')}" for name, value in shown.items())
    return (
        f"postgresql://{quote(user, safe='')}{'@' if user else ''}{','.join(places)}/{quote(database, safe='')}"
        f"{'?' if options else ''}{options}"
    )


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")
