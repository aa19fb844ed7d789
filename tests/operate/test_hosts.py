"""A service answers about itself only under names that are its own."""

import socket
import urllib.error
import urllib.request

import pytest

from onefold.config import allowed_hosts
from onefold.config.metrics_server import Exposed, serve

pytestmark = pytest.mark.promise("host-names")


@pytest.fixture(scope="module")
def address() -> str:
    return serve(
        Exposed("processor", ["runner"], 60.0), "127.0.0.1", 0, allowed_hosts.names("processor, *.svc.example")
    )


def answer(url: str, host: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"Host": host, **headers}), timeout=10
        ) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
@pytest.mark.parametrize("host", ["attacker.example", "127.0.0.1.attacker.example:9464", "svc.example", "x y", ""])
def test_another_name_gets_no_answer(path: str, host: str, address: str) -> None:
    status, text = answer(f"{address}{path}", host)
    assert (status, "ONEFOLD_METRICS_HOSTS" in text) == (400, True)


def test_a_probe_that_names_no_host_gets_an_answer(address: str) -> None:
    """As HAProxy's: HTTP/1.0. No browser asks so."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as asked:
        asked.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b" 400 " not in asked.recv(100)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost:9464", "LOCALHOST.", "[::1]:1", "172.17.0.3:9464", "processor:9464", "a.svc.example"],
)
def test_names_of_its_own_do(host: str, address: str) -> None:
    status, text = answer(f"{address}/metrics", host)
    assert (status, "onefold_" in text) == (200, True)


@pytest.mark.parametrize("text", ["*", "a:80", "http://a", "a b", "*.", "a.*.b", "-a", "a..b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no name of a host"):
        allowed_hosts.names(text)
