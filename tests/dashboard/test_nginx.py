"""The configuration of nginx in docs/dashboard.md, before a page: it asks for TLS and a password, and passes on the name."""

import base64
import getpass
import http.client
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.stack.ports import free_ports
from tests.support.certificates import Authority
from tests.support.site import ROOT, Site
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,  # starts two processes
    pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed"),
]

NAME = "board.example"
_READY_S = 20.0
_AROUND = """
daemon off;
user {user};  # root's workers would run as nobody, who does not read the files of a test
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Where nginx listens, with a page behind it."""
    environment = {"ONEFOLD_POSTGRES_DSN": "postgresql://nobody@127.0.0.1:1/none", "ONEFOLD_DASHBOARD_HOSTS": NAME}
    site = Site(tmp_path, environment)
    (found,) = free_ports(1)
    mine = Authority(tmp_path).issue("board")
    (tmp_path / "users").write_text("ann:{PLAIN}a password\n", encoding="utf-8")
    (server,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs" / "dashboard.md").read_text("utf-8"), re.DOTALL)
    for documented, here in {
        "listen 443": f"listen 127.0.0.1:{found}",
        "/etc/ssl/board.pem": str(mine.chain),
        "/etc/ssl/board.key": str(mine.key),
        "/etc/nginx/onefold.htpasswd": str(tmp_path / "users"),
        "http://127.0.0.1:8080": site.url,
    }.items():
        assert documented in server
        server = server.replace(documented, here)
    file = tmp_path / "nginx.conf"
    file.write_text(_AROUND.format(folder=tmp_path, server=server, user=getpass.getuser()), encoding="utf-8")
    nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(file), "-e", str(tmp_path / "error.log")])
    try:
        eventually(lambda: _answers(found, tmp_path), _READY_S, "nginx answers")
        yield found
    finally:
        nginx.terminate()
        nginx.wait(_READY_S)
        site.stop()


def _answers(port: int, folder: Path) -> bool:
    try:
        return asked(port, folder)[0] == 401
    except OSError:
        return False


def asked(port: int, folder: Path, *, password: str = "", name: str = NAME) -> tuple[int, str]:
    """The status and the text of the page."""
    context = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=_READY_S, context=context)
    given = base64.b64encode(f"ann:{password}".encode()).decode()
    connection.request("GET", "/", headers={"Host": name, "Authorization": f"Basic {given}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_documented_proxy_asks_for_a_password_and_passes_on_the_name(port: int, tmp_path: Path) -> None:
    assert asked(port, tmp_path, password="wrong")[0] == 401
    status, text = asked(port, tmp_path, password="a password")
    assert (status, "<title>Onefold</title>" in text) == (200, True)
    status, text = asked(port, tmp_path, password="a password", name="attacker.example")
    assert (status, "ONEFOLD_DASHBOARD_HOSTS" in text) == (400, True)
