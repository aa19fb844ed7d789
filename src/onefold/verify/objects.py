"""The verifier's own reader of an object store: a folder, or an S3 bucket. Nothing is written.

    file:///var/lib/onefold/objects     a folder
    s3://bucket/prefix                  a prefix of a bucket

An object is stored as `objects/<name>`, and its expiration marker, if any, as `marks/<name>`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from onefold import packages
from onefold.error_codes import Code
from onefold.verify.verdict import CannotTell

OBJECTS, MARKS = "objects/", "marks/"


class ObjectReader(Protocol):
    """An object store, for reading."""

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None: the object does not exist."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all objects with this prefix."""

    def marked(self) -> set[str]:
        """Return the names of objects with an expiration marker."""


class Folder:
    """A folder with one file for each object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None: the object does not exist."""
        try:
            return (self._folder / OBJECTS / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all objects with this prefix."""
        return (name for name in self._below(OBJECTS) if name.startswith(prefix))

    def marked(self) -> set[str]:
        """Return the names of objects with an expiration marker."""
        return set(self._below(MARKS))

    def _below(self, kind: str) -> Iterator[str]:
        root = self._folder / kind
        return (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())


# A signature requires a region, even for servers without regions.
_ANY_REGION = "us-east-1"


class Bucket:
    """A prefix of a bucket on an S3 server. The credentials come from the environment, as for every S3 client."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None) -> None:
        try:
            import boto3  # optional: only pipelines with objects need an S3 client
        except ModuleNotFoundError:
            raise CannotTell(
                Code.PACKAGE_MISSING,
                f"objects in S3 are read by boto3, which is not installed: {packages.install('s3')}",
            ) from None

        self._client: Any = boto3.client("s3", endpoint_url=endpoint, region_name=_ANY_REGION if endpoint else None)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None: the object does not exist."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + OBJECTS + name)
        except self._client.exceptions.NoSuchKey:
            return None
        content: bytes = answer["Body"].read()
        return content

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of all objects with this prefix."""
        return self._below(OBJECTS, prefix)

    def marked(self) -> set[str]:
        """Return the names of objects with an expiration marker."""
        return set(self._below(MARKS, ""))

    def _below(self, kind: str, prefix: str) -> Iterator[str]:
        root = self._prefix + kind
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=root + prefix):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(root)


def open_store(url: str, endpoint: str | None = None) -> ObjectReader:
    """Open the store at `file:///folder` or `s3://bucket/prefix`. Raises `CannotTell` for any other address.

    Args:
        endpoint: the address of an S3 server; None: Amazon's.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return Folder(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, parts.path.strip("/"), endpoint)
    raise CannotTell(Code.SETTING_WRONG, f"{url} is no object store: say file:///folder or s3://bucket/prefix")
