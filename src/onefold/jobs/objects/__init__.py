"""Stores of objects: a folder, or a bucket of S3 or a compatible server."""

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
    """Open the store at `file:///folder` or `s3://bucket/prefix`.

    Args:
        endpoint: http(s)://... of an S3 server other than Amazon's; ignored for a folder.
        makes: whether to create a missing folder.

    Raises UserError: the address is of neither kind, or the store is not usable.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc == "" and parts.path.strip("/"):
        from onefold.jobs.objects.local import LocalStore

        return LocalStore(Path(unquote(parts.path)), makes=makes)
    if parts.scheme == "s3" and BUCKET.fullmatch(parts.netloc) and not parts.query + parts.fragment:
        from onefold.jobs.objects.s3 import S3Store  # imported here, because a folder needs no boto3

        return S3Store(parts.netloc, parts.path.strip("/"), endpoint)
    raise UserError(
        Code.SETTING_WRONG,
        f"{redaction.address(url)!r} is no store of objects",
        "Write file:///a/folder or s3://bucket/prefix into ONEFOLD_OBJECTS.",
        USAGE,
    )


def open_to_read(url: str, endpoint: str | None = None) -> ReadOnly:
    """Open the store for a reader, without writes and without creating a folder. Arguments and errors: see `open_store`."""
    return ReadOnly(open_store(url, endpoint, makes=False))
