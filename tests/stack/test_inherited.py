"""What a service gets of its caller's environment."""

import json
import sys
from pathlib import Path

import pytest

from onefold.config.settings import Settings
from onefold.stack import plan, service_environment
from onefold.stack.child import Child
from onefold.stack.service import Ready, SupervisedService
from tests.support.waiting import eventually

pytestmark = pytest.mark.promise("secrets-stay")

SHELL = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/tmp",
    "JAVA_HOME": "/java",
    "SPARK_SUBMIT_OPTS": "-Xmx1g",
    "SSL_CERT_FILE": "/ca.pem",
    "https_proxy": "http://proxy:3128",
    "PYTHONPATH": "/mine",
    "PGSSLROOTCERT": "/ca.pem",
    "ONEFOLD_POSTGRES_DSN": "postgresql://",
    "AWS_SECRET_ACCESS_KEY": "x",
    "GITHUB_TOKEN": "x",
    "KUBECONFIG": "x",
    "SSH_AUTH_SOCK": "x",
}
RUNS = {"PATH", "HOME", "LC_ALL", "TMPDIR"}


@pytest.mark.parametrize(
    ("names", "gets"),
    [
        (service_environment.POSTGRES, RUNS),
        (service_environment.KAFKA, {*RUNS, "JAVA_HOME"}),
        (
            service_environment.SINK,
            SHELL.keys() - {"AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "KUBECONFIG", "SSH_AUTH_SOCK"},
        ),
        (None, SHELL.keys()),
    ],
)
def test_who_gets_what(names: tuple[str, ...] | None, gets: set[str]) -> None:
    assert service_environment.environment(names, SHELL) == {name: SHELL[name] for name in gets}


def test_a_plan_says_what_its_services_get(tmp_path: Path) -> None:
    """Code of a pipeline may read variables of its own; what no such code runs in does without."""
    public = {"bootstrap_servers": "here", "postgres_dsn": "postgresql://", "dashboard": "http://127.0.0.1:1"}
    made = plan.StackPlan(plan.pipeline(Settings(home=tmp_path), ["runner"], public), public)
    made.write(tmp_path)
    services = {service.name: service.inherits for stage in plan.StackPlan.read(tmp_path).stages for service in stage}
    of_sinks = {name for name, inherits in services.items() if inherits == service_environment.SINK}
    assert of_sinks == {"sink-1"}
    assert {inherits for name, inherits in services.items() if name not in of_sinks} == {None}


def test_a_child_gets_what_it_is_given_and_what_it_inherits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    service = SupervisedService(
        "one",
        (sys.executable, "-c", program),
        tmp_path / "one.log",
        Ready("done"),
        environment={"MINE": "1"},
        inherits=service_environment.KAFKA,
    )
    child = Child(service)
    child.start()
    eventually(lambda: child.poll() is not None, 30, "it has ended")
    told = json.loads((tmp_path / "one.log").read_text(encoding="utf-8"))
    assert (told["MINE"], "PATH" in told, "AWS_SECRET_ACCESS_KEY" in told) == ("1", True, False)
