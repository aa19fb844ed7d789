"""Objects in a bucket of Amazon S3 or a compatible server.

Every put of S3 is atomic. With `If-None-Match: *`, only the first of two writers succeeds. boto3 finds the credentials and the
region in the usual places: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the role of a machine.
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

# The size of a stream's parts in memory. S3 accepts 10,000 parts of at least 5 MiB, so an object is limited to 156 GiB.
PART_BYTES = 16 << 20
# The maximum number of attempts of a put during a concurrent put of the same name. After the end of the concurrent put, S3
# responds without a conflict.
CONFLICTS_MAX = 10
CONNECT_S, READ_S = 5, 60
# For servers without a configured region, because a signature requires a region.
ANY_REGION = "us-east-1"
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"}
ABSENT = {"NoSuchKey", "404"}
# The error codes of servers without support of If-None-Match on a put.
UNCONDITIONAL = {"NotImplemented", "501"}


class S3Store:
    """The objects below a prefix of an existing bucket. Raises UserError: the bucket is not usable."""

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
                    # Addressing by path needs no DNS name per bucket. Amazon's buckets require DNS names.
                    s3={"addressing_style": "path" if endpoint else "auto"},
                    # TLS and the signature protect the content. Most other servers do not support the newer checksums.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
            # A list request distinguishes a missing bucket from a bucket without access.
            self._client.list_objects_v2(Bucket=bucket, Prefix=self._root, MaxKeys=1)

    def put(self, name: str, content: bytes) -> bool:
        """See `Objects`. Also False if a response was lost, and the retry found the object of the first attempt."""
        key = self._key(name)
        with self._told():
            return self._first(name, lambda **condition: self._put(key, content, **condition))

    def put_stream(self, name: str, parts: Iterator[bytes]) -> int:
        """See `Objects`."""
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
        """See `Objects`."""
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
                    return b""  # `start` is beyond the end
                raise
        return found

    def size(self, name: str) -> int | None:
        """See `Objects`."""
        with self._told():
            try:
                return int(self._client.head_object(Bucket=self._bucket, Key=self._key(name))["ContentLength"])
            except ClientError as error:
                if _code(error) in ABSENT:
                    return None
                raise

    def delete(self, name: str) -> None:
        """See `Objects`."""
        with self._told():
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name))

    def ids(self, prefix: str = "") -> Iterator[str]:
        """See `Objects`."""
        return (name for name, _ in self._listed(OBJECTS, checked_prefix(prefix)))

    def mark(self, name: str) -> None:
        """See `Objects`."""
        with self._told():
            self._put(self._root + MARKS + checked(name), b"")

    def unmark(self, name: str) -> None:
        """See `Objects`."""
        with self._told():
            self._client.delete_object(Bucket=self._bucket, Key=self._root + MARKS + checked(name))

    def marks(self) -> Iterator[Mark]:
        """See `Objects`."""
        return (Mark(name, since) for name, since in self._listed(MARKS, ""))

    def clear(self, older_than_s: float) -> int:
        """See `ObjectStore`."""
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
        """Write an object unless the object exists. Returns whether this call has written the object.

        For a server without support of the condition, check for the object before. Two writers may then both write, which is
        harmless, because each name has only one content. A server that ignores the condition is harmless for the same reason.
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
            # This upload was completed and the response lost, or another writer was first and S3 discarded the upload.
            if _code(error) != "NoSuchUpload" or self.size(name) is None:
                raise
        finally:
            if not written:
                with suppress(ClientError, BotoCoreError):  # after an error, `clear` aborts the upload later
                    self._abort(key, upload)
        return size if written else self.size(name) or 0

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except ClientError as error:
            if _code(error) != "NoSuchUpload":  # already completed or aborted
                raise

    def _listed(self, kind: str, prefix: str) -> Iterator[tuple[str, datetime]]:
        """Yield the names below objects/ or marks/, in the sorted order of S3, each with the time of the last write."""
        root = self._root + kind
        pages = self._client.get_paginator("list_objects_v2")
        with self._told():
            for page in pages.paginate(Bucket=self._bucket, Prefix=root + prefix):
                for found in page.get("Contents", ()):
                    yield found["Key"].removeprefix(root), found["LastModified"]

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Convert an error of S3 into a `UserError`."""
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
            # For example an overload. A later attempt may succeed.
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
    """Yield the same bytes in pieces of PART_BYTES. The last piece may be smaller."""
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
