"""What a reset removes by the effects of a pipeline's jobs, without a server."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from smtplib import SMTPConnectError

import psycopg
import pytest

from onefold.config.errors import UserError
from onefold.effects import OnceEach
from onefold.error_codes import Code
from onefold.jobs.context import Context
from onefold.jobs.objects.local import LocalStore
from onefold.jobs.protocols import Objects
from onefold.jobs.starting_over import StartingOver
from onefold.operate import pipelines
from onefold.pipelines import Pipeline
from tests.support.coded import raises

SNAPSHOTS = ["snapshots/a", "snapshots/b", "snapshots/c"]


class Mails(OnceEach):
    """Its server is away, or its author has made a mistake."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.started_over = error, 0

    def leftovers(self, *, inputs: bool) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        return ["all mails are sent once more"]

    def start_over(self, *, inputs: bool) -> None:
        if self.error is not None:
            raise self.error
        self.started_over += 1


def nothing() -> None:
    """The session is there."""


def cut() -> None:
    raise UserError(Code.POSTGRES_SILENT, "this reset's session in PostgreSQL has ended")


def context(store: Objects, folder: Path) -> Context:
    return Context("sheets", "", {"bootstrap.servers": "127.0.0.1:9"}, lambda: store, folder)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    made = LocalStore(tmp_path / "store")
    for name in SNAPSHOTS:
        made.put(name, b"{}")
    return made


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> tuple[Pipeline, Mails]:
    """A pipeline with an effect that needs no context."""
    mails = Mails()
    monkeypatch.setattr(Pipeline, "load_job", lambda pipeline, queue: mails)
    jobs = {"sheets.jobs": "shop:MAILS"}
    return replace(pipelines.found()["sheets"], jobs=jobs), mails


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SMTPConnectError(421, "try again later"), "SMTPConnectError: (421, 'try again later')"),
        (PermissionError(13, "Permission denied", "/mails"), "PermissionError: [Errno 13] Permission denied: '/mails'"),
        (psycopg.OperationalError("the server\nis away"), "OperationalError: the server"),
    ],
)
def test_what_an_effect_raises_is_a_sentence_that_says_whose_it_is(
    orders: tuple[Pipeline, Mails], store: LocalStore, tmp_path: Path, error: Exception, said: str
) -> None:
    """And no fault of PostgreSQL, or of a folder of Onefold's own."""
    pipeline, mails = orders
    jobs = StartingOver(pipeline, context(store, tmp_path))
    assert jobs.leftovers(inputs=False) == ["all mails are sent once more"]
    mails.error = error
    for act in (lambda: jobs.leftovers(inputs=False), lambda: jobs.start_over(inputs=False, still=nothing)):
        with pytest.raises(UserError) as caught:
            act()
        assert caught.value.message == f"shop:MAILS, which does the jobs of sheets.jobs, fails: {said}"


def test_what_is_meant_for_a_person_stays_as_it_is(
    orders: tuple[Pipeline, Mails], store: LocalStore, tmp_path: Path
) -> None:
    pipeline, mails = orders
    mails.error = UserError(Code.ARGUMENT_WRONG, "MAIL_SERVER is not set", "Set it.", 2)
    with pytest.raises(UserError) as caught:
        StartingOver(pipeline, context(store, tmp_path)).leftovers(inputs=False)
    assert caught.value is mails.error


def test_a_reset_that_has_lost_its_session_starts_no_effect_over(
    orders: tuple[Pipeline, Mails], store: LocalStore, tmp_path: Path
) -> None:
    """Also where the effect asks nobody."""
    pipeline, mails = orders
    jobs = StartingOver(pipeline, context(store, tmp_path))
    with raises(UserError, Code.POSTGRES_SILENT):
        jobs.start_over(inputs=False, still=cut)
    assert mails.started_over == 0
    jobs.start_over(inputs=False, still=nothing)
    assert mails.started_over == 1


@pytest.mark.promise("resets-that-slept")
def test_a_reset_that_slept_deletes_no_snapshot_of_the_new_run(store: LocalStore, tmp_path: Path) -> None:
    """It has listed three and deleted one; then another reset came to its end, and the new run has made one of these names."""
    jobs = StartingOver(pipelines.found()["sheets"], context(store, tmp_path))

    def still() -> None:
        if len([*store.ids()]) < len(SNAPSHOTS):
            cut()

    with raises(UserError, Code.POSTGRES_SILENT):
        jobs.start_over(inputs=False, still=still)
    assert [*store.ids()] == SNAPSHOTS[1:]
    jobs.start_over(inputs=False, still=nothing)
    assert [*store.ids()] == []
