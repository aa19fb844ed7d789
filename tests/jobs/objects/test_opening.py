"""What is wrong with a store is one sentence that says what to do."""

from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import FAILED, UNAVAILABLE, USAGE
from onefold.jobs.objects import open_store
from onefold.jobs.objects.s3 import S3Store
from onefold.stack.ports import free_ports
from tests.support.coded import raises
from tests.support.s3 import Bucket


def refused(url: str, endpoint: str | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        open_store(url, endpoint)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    "url", ["", "objects", "/tmp/objects", "file://host/x", "file:///", "s3://", "s3://B/x", "s3://b", "http://x/y",
            "s3://bucket/x?y", "gs://bucket/x"],
)  # fmt: skip
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    error = refused(url)
    assert error.message == f"{url!r} is no store of objects"
    assert error.hint == "Write file:///a/folder or s3://bucket/prefix into ONEFOLD_OBJECTS."
    assert error.exit_code == USAGE


def test_a_folder_is_made_and_is_its_owners_alone(tmp_path: Path) -> None:
    store = open_store((tmp_path / "a folder" / "below").as_uri())
    assert store.put("x", b"y")
    assert (tmp_path / "a folder" / "below" / "objects" / "x").read_bytes() == b"y"
    assert (tmp_path / "a folder" / "below").stat().st_mode & 0o77 == 0


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    error = refused((tmp_path / "file").as_uri())
    assert error.message.startswith(f"the store of objects cannot use {tmp_path / 'file'}: ")
    assert error.exit_code == FAILED


def test_a_name_below_an_object(tmp_path: Path) -> None:
    """Of a folder only; in S3 it would be two objects."""
    store = open_store(tmp_path.as_uri())
    store.put("a/b", b"")
    with raises(UserError, Code.OBJECTS_SILENT):
        store.put("a/b/c", b"")
    assert store.size("a/b/c") is None
    assert store.size("a") is None


def test_no_such_bucket(bucket: Bucket) -> None:
    error = refused("s3://nobodys-bucket/x", bucket.server.endpoint)
    assert error.message == f"{bucket.server.endpoint} has no bucket nobodys-bucket"
    assert error.exit_code == FAILED


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"), ("AWS_ACCESS_KEY_ID", "who", "InvalidAccessKeyId")],
)
def test_a_wrong_key(variable: str, value: str, reason: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    error = refused(bucket.url, bucket.server.endpoint)
    assert error.message == f"{bucket.server.endpoint} does not let us use the bucket {bucket.name} ({reason})"
    assert "AWS_ACCESS_KEY_ID" in error.hint


def test_no_key_at_all(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in bucket.environment:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for variable in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    assert "does not let us use" in refused(bucket.url, bucket.server.endpoint).message


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    error = refused("s3://bucket/x", address)
    assert error.message.startswith(f"the store of objects at {address} does not answer: ")
    assert error.exit_code == UNAVAILABLE


def test_a_bucket_that_goes_away(bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.server.endpoint)
    bucket.server.client().delete_bucket(Bucket=bucket.name)
    for call in (lambda: store.put("a", b""), lambda: store.get("a"), lambda: list(store.ids())):
        with raises(UserError, Code.OBJECTS_REFUSED):
            call()


class _Raw:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def stream(self) -> Any:
        yield self.content


def answering(store: Any, operation: str, answers: list[tuple[int, str]]) -> list[str | None]:
    """Before the real server, one that gives these answers to conditional requests; gives the conditions that it saw."""
    seen: list[str | None] = []

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        condition = request.headers.get("If-None-Match")
        seen.append(condition and condition.decode())
        if not condition or not answers:
            return None
        status, code = answers.pop(0)
        content = f"<Error><Code>{code}</Code><Message>as asked for</Message></Error>".encode()
        return AWSResponse(request.url, status, {"content-type": "application/xml"}, _Raw(content))

    store._client.meta.events.register(f"before-send.s3.{operation}", answer)
    return seen


@pytest.mark.parametrize("already", [False, True])
def test_a_server_that_knows_no_conditions_is_asked_beforehand(already: bool, bucket: Bucket) -> None:
    store = S3Store(bucket.name, "", bucket.server.endpoint)
    if already:
        store.put("a", b"first")
    seen = answering(store, "PutObject", [(501, "NotImplemented")])
    assert store.put("a", b"second") is not already
    assert store.get("a") == (b"first" if already else b"second")
    assert store.put("b", b"x")
    assert not store.put("b", b"y")
    assert seen == (["*", None] if already else ["*", None, None])


def test_a_put_that_is_not_decided_is_repeated(bucket: Bucket) -> None:
    """Another one of that name is under way: 409, and then what it came to."""
    store = S3Store(bucket.name, "", bucket.server.endpoint)
    seen = answering(store, "PutObject", [(409, "ConditionalRequestConflict")] * 2)
    assert store.put("a", b"x")
    assert seen == ["*"] * 3
    answering(store, "PutObject", [(409, "ConditionalRequestConflict")] * 99)
    with raises(UserError, Code.OBJECTS_SILENT):
        store.put("b", b"x")
