"""Objects in a bucket of Amazon's S3, or of a server that speaks its protocol.

A put is whole or not at all because S3 has no other, and `If-None-Match: *` makes one of two writers the first. Who may, and
where, boto3 finds as everywhere: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, the role of a machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

from onefold.config.errors import UserError, first_line
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.jobs.objects.store import MARKS, OBJECTS, checked, checked_prefix
from onefold.jobs.protocols import Mark, Missing

# At once in memory of a stream. S3 takes 10,000 parts of 5 MiB or more, so an object may have 156 GiB.
PART_BYTES = 16 << 20
# How often a put is repeated that S3 would not decide because another one of that name was under way; each try takes as long
# as a put, and after the other one has ended the answer is a plain one.
CONFLICTS_MAX = 10
CONNECT_S, READ_S = 5, 60
# For servers of which nobody said where they are: a signature has to name some region.
ANY_REGION = "us-east-1"
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"}
ABSENT = {"NoSuchKey", "404"}
# How servers say that they know no If-None-Match on a put.
UNCONDITIONAL = {"NotImplemented", "501"}


class S3Store:
    """The objects below a prefix of a bucket that exists. Raises UserError: the bucket cannot be used."""

    def __init__(self, bucket: str, prefix: str = "", endpoint: str | None = None) -> None:
        self._bucket, self._where = bucket, endpoint or "Amazon S3"
        self._root = f"{prefix}/" if prefix else ""
        self._conditional = True
        session = boto3.Session()
        with self._told():
            self._client: Any = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=session.region_name or ANY_REGION,
                config=Config(
                    connect_timeout=CONNECT_S,
                    read_timeout=READ_S,
                    retries={"mode": "standard", "total_max_attempts": 4},
                    # What needs no name of its own in the DNS; Amazon's own need one.
                    s3={"addressing_style": "path" if endpoint else "auto"},
                    # TLS and the signature cover what is sent; sums of the newer kind are unknown to most other servers.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
            # Listing also tells a bucket that is not there from one that may not be read.
            self._client.list_objects_v2(Bucket=bucket, Prefix=self._root, MaxKeys=1)

    def put(self, name: str, content: bytes) -> bool:
        """Write it, whole or not at all, durable on return. False: it was there, and nothing was written.

        Also False when an answer was lost and the try after that found what the one before had written.
        """
        key = self._key(name)
        with self._told():
            return self._first(name, lambda **condition: self._put(key, content, **condition))

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """The same for what does not fit into memory; gives its size in bytes."""
        there = self.size(name)
        if there is not None:
            return there
        pieces = _pieces(parts)
        first, second = next(pieces, b""), next(pieces, None)
        if second is None:
            return len(first) if self.put(name, first) else self.size(name) or 0
        with self._told():
            return self._multipart(name, _chained(first, second, pieces))

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Its bytes from `start` up to `end`. Raises `Missing`."""
        if end is not None and end <= start:
            if self.size(name) is None:
                raise Missing(name)
            return b""
        wanted = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        with self._told():
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._key(name), **wanted)
                found: bytes = answer["Body"].read()
            except ClientError as error:
                if _code(error) in ABSENT:
                    raise Missing(name) from None
                if _code(error) in ("InvalidRange", "416"):
                    return b""  # it begins behind the end
                raise
        return found

    def size(self, name: str) -> int | None:
        """In bytes; None: there is no such object."""
        with self._told():
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=self._key(name))["ContentLength"])
            except ClientError as error:
                if _code(error) in ABSENT:
                    return None
                raise

    def delete(self, name: str) -> None:
        """Also of what is not there."""
        with self._told():
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def ids(self, prefix: str = "") -> Iterator[str]:
        """Of all objects whose name begins so, sorted; marks are no objects."""
        return (name for name, _ in self._listed(OBJECTS, checked_prefix(prefix)))

    def mark(self, name: str) -> None:
        """Set its expiry mark; the object need not be there yet. Again: the mark is as old as the newest call."""
        with self._told():
            self._put(self._root + MARKS + checked(name), b"")

    def unmark(self, name: str) -> None:
        """Remove its mark; also when there is none."""
        with self._told():
            self._client.delete_object(Bucket=self._bucket, Key=self._root + MARKS + checked(name))

    def marks(self) -> Iterator[Mark]:
        """All of them, oldest or not, in any order."""
        return (Mark(name, since) for name, since in self._listed(MARKS, ""))

    def clear(self, older_than_s: float) -> int:
        """Remove what was begun so long ago and never became an object; gives how much that was."""
        cleared, now = 0, datetime.now(UTC)
        with self._told():
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._root + OBJECTS):
                for begun in page.get("Uploads", ()):
                    if (now - begun["Initiated"]).total_seconds() >= older_than_s:
                        self._abort(begun["Key"], begun["UploadId"])
                        cleared += 1
        return cleared

    def _key(self, name: str) -> str:
        return self._root + OBJECTS + checked(name)

    def _put(self, key: str, content: bytes, **condition: str) -> None:
        self._client.put_object(Bucket=self._bucket, Key=key, Body=content, **condition)

    def _first(self, name: str, write: Callable[..., object]) -> bool:
        """Whether the write was done, and the object not there before.

        A server that does not know the condition is asked beforehand. Two writers may then both write; a name belongs to one
        content, so that what is there stays the same. One that takes no notice of the condition does no harm either.
        """
        for _ in range(CONFLICTS_MAX if self._conditional else 0):
            try:
                write(IfNoneMatch="*")
                return True
            except ClientError as error:
                if _code(error) in ("PreconditionFailed", "412"):
                    return False
                if _code(error) in UNCONDITIONAL:
                    self._conditional = False
                    break
                if _code(error) not in ("ConditionalRequestConflict", "409"):
                    raise
        if self._conditional:
            raise UserError(
                Code.OBJECTS_SILENT, f"{self._where}: others write {name} all the time", "Try again.", UNAVAILABLE
            )
        if self.size(name) is not None:
            return False
        write()
        return True

    def _multipart(self, name: str, pieces: Iterator[bytes]) -> int:
        key, size, tags = self._key(name), 0, list[dict[str, Any]]()
        upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"]
        given = {"Bucket": self._bucket, "Key": key, "UploadId": upload}
        written = False
        try:
            for number, piece in enumerate(pieces, 1):
                answer = self._client.upload_part(**given, PartNumber=number, Body=piece)
                tags.append({"PartNumber": number, "ETag": answer["ETag"]})
                size += len(piece)

            def complete(**condition: str) -> None:
                self._client.complete_multipart_upload(**given, MultipartUpload={"Parts": tags}, **condition)

            written = self._first(name, complete)
        except ClientError as error:
            # Ours was completed and the answer lost; or another writer was first, and S3 gave up what we had sent.
            if _code(error) != "NoSuchUpload" or self.size(name) is None:
                raise
        finally:
            if not written:
                with suppress(ClientError, BotoCoreError):  # else `clear` will
                    self._abort(key, upload)
        return size if written else self.size(name) or 0

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if _code(error) != "NoSuchUpload":  # somebody else did
                raise

    def _listed(self, kind: str, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Names below objects/ or marks/, sorted as S3 lists them, and since when they are there."""
        root = self._root + kind
        pages = self._client.get_paginator("list_objects_v2")
        with self._told():
            for page in pages.paginate(Bucket=self._bucket, Prefix=root + prefix):
                for found in page.get("Contents", ()):
                    yield found["Key"].removeprefix(root), found["LastModified"]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What S3 refuses, as a sentence."""
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise self._denied(first_line(error)) from None
        except ClientError as error:
            code = _code(error)
            if code == "NoSuchBucket":
                raise UserError(
                    Code.OBJECTS_REFUSED,
                    f"{self._where} has no bucket {self._bucket}",
                    "Make it, or correct ONEFOLD_OBJECTS.",
                ) from None
            if code in DENIED:
                raise self._denied(code) from None
            # Such as that it has too much to do: it may do it later.
            raise UserError(
                Code.OBJECTS_SILENT,
                f"{self._where} did not do what the store of objects asked for: {first_line(error)}",
                "Try again.",
                UNAVAILABLE,
            ) from None
        except BotoCoreError as error:
            raise UserError(
                Code.OBJECTS_SILENT,
                f"the store of objects at {self._where} does not answer: {first_line(error)}",
                "See whether it runs, and whether ONEFOLD_OBJECTS and ONEFOLD_OBJECTS_ENDPOINT are right.",
                UNAVAILABLE,
            ) from None

    def _denied(self, reason: str) -> UserError:
        return UserError(
            Code.OBJECTS_REFUSED,
            f"{self._where} does not let us use the bucket {self._bucket} ({reason})",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a key that may list, read, write and delete there.",
        )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _pieces(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PART_BYTES; the last one may be smaller."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
    if held:
        yield bytes(held)


def _chained(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest
