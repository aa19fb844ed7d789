"""Stores of objects: a folder, or a bucket of an S3."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from onefold.config import redaction
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.jobs.objects.readonly import ReadOnly
from onefold.jobs.objects.store import BUCKET, ObjectStore


def open_store(url: str, endpoint: str | None = None, *, makes: bool = True) -> ObjectStore:
    """The store at `file:///folder` or `s3://bucket/prefix`.

    Args:
        endpoint: http(s)://... of an S3 that is not Amazon's; of no meaning for a folder.
        makes: whether a folder that is not there is made.

    Raises UserError: the address is of neither kind, or the store cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc == "" and parts.path.strip("/"):
        from onefold.jobs.objects.local import LocalStore

        return LocalStore(Path(unquote(parts.path)), makes=makes)
    if parts.scheme == "s3" and BUCKET.fullmatch(parts.netloc) and not parts.query + parts.fragment:
        from onefold.jobs.objects.s3 import S3Store  # who keeps objects in a folder needs no boto3

        return S3Store(parts.netloc, parts.path.strip("/"), endpoint)
    raise UserError(
        Code.SETTING_WRONG,
        f"{redaction.address(url)!r} is no store of objects",
        "Write file:///a/folder or s3://bucket/prefix into ONEFOLD_OBJECTS.",
        USAGE,
    )


def open_to_read(url: str, endpoint: str | None = None) -> ReadOnly:
    """The store for a reader, which writes nothing there and makes no folder. Arguments and errors are those of `open_store`."""
    return ReadOnly(open_store(url, endpoint, makes=False))
