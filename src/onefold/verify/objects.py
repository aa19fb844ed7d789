"""Reading an object store, by the judge's own hand: a folder, or a bucket of S3. It writes nothing.

    file:///var/lib/onefold/objects     a folder
    s3://bucket/prefix                  a prefix of a bucket

An object lies there as `objects/<name>`, and its expiry mark, if it has one, as `marks/<name>`.
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
    """What a judge asks of a store."""

    def get(self, name: str) -> bytes | None:
        """An object's content; None: there is no such object."""

    def names(self, prefix: str) -> Iterator[str]:
        """The names of all objects that begin so."""

    def marked(self) -> set[str]:
        """The names of those that have an expiry mark."""


class Folder:
    """A folder with one file an object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> bytes | None:
        """An object's content; None: there is no such object."""
        try:
            return (self._folder / OBJECTS / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, prefix: str) -> Iterator[str]:
        """The names of all objects that begin so."""
        return (name for name in self._below(OBJECTS) if name.startswith(prefix))

    def marked(self) -> set[str]:
        """The names of those that have an expiry mark."""
        return set(self._below(MARKS))

    def _below(self, kind: str) -> Iterator[str]:
        root = self._folder / kind
        return (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())


# A signature names some region, also where servers have none.
_ANY_REGION = "us-east-1"


class Bucket:
    """A prefix of a bucket, of a server that speaks S3. Who asks comes from the environment, as for every such client."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None) -> None:
        try:
            import boto3  # a judge of pipelines without objects needs no client of S3
        except ModuleNotFoundError:
            raise CannotTell(
                Code.PACKAGE_MISSING,
                f"objects in S3 are read by boto3, which is not installed: {packages.install('s3')}",
            ) from None

        self._client: Any = boto3.client("s3", endpoint_url=endpoint, region_name=_ANY_REGION if endpoint else None)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def get(self, name: str) -> bytes | None:
        """An object's content; None: there is no such object."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + OBJECTS + name)
        except self._client.exceptions.NoSuchKey:
            return None
        content: bytes = answer["Body"].read()
        return content

    def names(self, prefix: str) -> Iterator[str]:
        """The names of all objects that begin so."""
        return self._below(OBJECTS, prefix)

    def marked(self) -> set[str]:
        """The names of those that have an expiry mark."""
        return set(self._below(MARKS, ""))

    def _below(self, kind: str, prefix: str) -> Iterator[str]:
        root = self._prefix + kind
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket, Prefix=root + prefix):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(root)


def open_store(url: str, endpoint: str | None = None) -> ObjectReader:
    """The store at `file:///folder` or `s3://bucket/prefix`. Raises `CannotTell` for any other.

    Args:
        endpoint: of a server that speaks S3; None: Amazon's.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc:
        return Folder(Path(unquote(parts.path)))
    if parts.scheme == "s3" and parts.netloc:
        return Bucket(parts.netloc, parts.path.strip("/"), endpoint)
    raise CannotTell(Code.SETTING_WRONG, f"{url} is no object store: say file:///folder or s3://bucket/prefix")
