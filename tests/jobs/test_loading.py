"""What a declaration of jobs may name, and what is said of what it may not."""

import json
import sys
from pathlib import Path

import pytest

from onefold.effects import OnceEach
from onefold.error_codes import Code
from onefold.jobs.context import Context
from onefold.jobs.loading import effect_of
from onefold.jobs.protocols import Job, Objects, Place
from onefold.pipelines import Pipeline
from onefold.processor.core.errors import Misconfigured, ProcessorError, Retriable
from tests.support.coded import raises

MODULE = """
from onefold.effects import OnceEach
from onefold.error_codes import Code
from onefold.config.errors import UserError

class Mails(OnceEach):
    def __init__(self, pipeline=""):
        self.pipeline = pipeline

MAILS = Mails()

def made(context):
    return Mails(context.pipeline)

def nothing(context):
    return 7

def away(context):
    raise OSError("no route to the server\\nmore")

def unset(context):
    raise UserError(Code.SETTING_WRONG, "MAIL_SERVER is not set")

def silent(context):
    raise UserError(Code.OBJECTS_SILENT, "the store does not answer", exit_code=69)

NUMBER = 7
"""


def no_objects() -> Objects:
    raise AssertionError("nobody asked for the store")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context("orders", "", {}, no_objects, tmp_path)


def pipeline(folder: Path, name: str) -> Pipeline:
    (folder / "loaded_mails.py").write_text(MODULE, encoding="utf-8")
    file = folder / "pyproject.toml"
    jobs = {"orders.mails": f"loaded_mails:{name}"}
    return Pipeline("orders", file, "x:Y", None, folder, folder, jobs=jobs, imported_from=folder)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "loaded_mails", raising=False)


@pytest.mark.parametrize(("name", "told"), [("MAILS", ""), ("made", "orders")])
def test_an_effect_or_a_function_that_makes_one(tmp_path: Path, context: Context, name: str, told: str) -> None:
    found = effect_of(pipeline(tmp_path, name), "orders.mails", context)
    assert isinstance(found, OnceEach)
    assert vars(found) == {"pipeline": told}


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (
            "NUMBER",
            Misconfigured,
            "names loaded_mails:NUMBER, which has no ordered, and is no function that makes an effect",
        ),
        ("nothing", Misconfigured, "names loaded_mails:nothing, which makes a int without ordered, and no effect"),
        ("unset", Misconfigured, "names loaded_mails:unset: MAIL_SERVER is not set"),
        ("away", Retriable, "names loaded_mails:away, which fails: OSError: no route to the server"),
        ("gone", Misconfigured, "pipeline orders: loaded_mails has no gone"),
    ],
)
def test_what_is_none_is_one_sentence(
    tmp_path: Path, context: Context, name: str, error: type[ProcessorError], says: str
) -> None:
    """With the file that declares it."""
    with pytest.raises(error) as raised:
        effect_of(pipeline(tmp_path, name), "orders.mails", context)
    assert str(raised.value).startswith(str(tmp_path / "pyproject.toml"))
    assert str(raised.value).endswith(says)


def test_a_server_that_is_away_is_waited_for(tmp_path: Path, context: Context) -> None:
    """Also where the sentence is one for a person."""
    with raises(Retriable, Code.OBJECTS_SILENT):
        effect_of(pipeline(tmp_path, "silent"), "orders.mails", context)


@pytest.mark.parametrize("result", [b"250 ok", float("nan"), {"when": 1j}, "a\0", None, {"sent": [1, "x"]}])
def test_what_a_mail_gave_is_kept_somehow(result: object) -> None:
    """The mail is out: nothing that comes of it may have it sent again."""

    class Mails(OnceEach):
        def do(self, job: Job) -> object:
            return result

    job = Job("orders.mails", "a", Place(0, 1))
    (state,) = Mails().steps(job, None, None)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert "\0" not in str(state)
    assert Mails().finish(job, state) == state["result"]
    assert list(Mails().steps(job, state, None)) == []
