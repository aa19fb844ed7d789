"""Redaction: the values of settings without passwords and further secrets, for printing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from psycopg.pq import ConninfoOption

UNREADABLE = "(a connection string that cannot be read)"
URLS = ("postgresql://", "postgres://")
# Secret options, besides the options with libpq's own mark.
SECRET = {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
HIDDEN = b"*"  # libpq's mark (dispchar) of a secret option
HIDDEN_VALUE = "***"  # the replacement of a secret
# A comma separates addresses only before a scheme, because a password may contain a comma.
NEXT_URL = re.compile(r",(?=\w+://)")
# Letters, digits and escapes, one host, no options: every parser reads this form in the same way.
_WORD = "(?:[A-Za-z0-9._~-]|%(?!00)[0-9A-Fa-f]{2})"
PLAIN = f"postgres(?:ql)?://{_WORD}+(?::{_WORD}*)?@[A-Za-z0-9._-]+(?::[1-9][0-9]{{0,3}})?/{_WORD}+"
PORT_MAX = 65535
# Kafka client options with any of these words in their names hold a secret.
SECRET_WORDS = ("password", "secret", "jaas", "oauthbearer.config", "pem")


def dsn(text: str) -> str:
    """The connection string without its secrets, in the same form (URL or name=value pairs).

    The result still works with a password from PGPASSWORD or ~/.pgpass. An invalid string yields `UNREADABLE`.
    """
    from psycopg import conninfo

    try:
        check_dsn(text)
    except ValueError:
        return UNREADABLE
    shown = {option.keyword.decode(): (option.val or b"").decode() for option in _given(text) if not _is_secret(option)}
    return _url(shown) if text.startswith(URLS) else conninfo.make_conninfo(**shown)


def check_dsn(text: str) -> None:
    """Raise ValueError for a connection string that is invalid or that libpq would misread. The error repeats no part of it.

    libpq can take half of a password with a special character for the host, and errors with the host would print that half.
    """
    if re.fullmatch(PLAIN, text):
        return  # without the import of the PostgreSQL client, which would slow down a processor's start
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
    """The options of a Kafka client, with `HIDDEN_VALUE` for each secret."""
    return {
        name: HIDDEN_VALUE if any(word in name for word in SECRET_WORDS) else value
        for name, value in kafka_options.items()
    }


def spark_options(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark, with `HIDDEN_VALUE` for each setting that Spark itself redacts."""
    from onefold.spark_sink.spark.options import is_secret

    return {name: HIDDEN_VALUE if is_secret(name) or is_secret(value) else value for name, value in given.items()}


def address(text: str) -> str:
    """The address, or the comma-separated addresses, without the password before the host.

    The scheme is optional. A text without an account is returned unchanged.
    """
    return ",".join(map(_address, NEXT_URL.split(text)))


def _address(text: str) -> str:
    begin, separator, rest = text.rpartition("://")
    # An address without a scheme has no path either, so a / belongs to the password.
    account, at, _ = (rest.partition("/")[0] if separator else rest).rpartition("@")
    if ":" not in account:
        return text
    return f"{begin}{separator}{account.partition(':')[0]}:{HIDDEN_VALUE}@{rest[len(account) + len(at) :]}"


def scrub(text: str, kafka_options: Mapping[str, str]) -> str:
    """Replace each secret of the Kafka options in a text by `HIDDEN_VALUE`."""
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
    if len(ports) == 1:  # one port for all hosts, also from an option
        ports *= len(hosts)
    places = [_host(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)]
    options = "&".join(f"{name}={quote(value, safe='/')}" for name, value in shown.items())
    return (
        f"postgresql://{quote(user, safe='')}{'@' if user else ''}{','.join(places)}/{quote(database, safe='')}"
        f"{'?' if options else ''}{options}"
    )


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")
