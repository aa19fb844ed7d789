"""Object stores for tests: each test runs with a folder and with a bucket."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from onefold.jobs.objects import open_store
from onefold.jobs.objects.store import ObjectStore
from tests.support.rooms import ROOT
from tests.support.s3 import Bucket


@dataclass(frozen=True)
class StorePlace:
    """Address of an empty store, and the environment of a Python process that uses the store."""

    url: str
    endpoint: str | None
    environment: dict[str, str]

    def open(self) -> ObjectStore:
        """Open the store; each call gives a new instance over the same objects."""
        return open_store(self.url, self.endpoint)


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def store_place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """An empty folder, and in a second run an empty bucket."""
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if request.param == "folder":
        return StorePlace((tmp_path / "store").as_uri(), None, here)
    bucket: Bucket = request.getfixturevalue("bucket")
    return StorePlace(bucket.url, bucket.server.endpoint, {**here, **bucket.environment})


@pytest.fixture
def store(store_place: StorePlace) -> ObjectStore:
    """An open store."""
    return store_place.open()
