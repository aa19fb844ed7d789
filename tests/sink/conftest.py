"""Batches with the ends of the sink made up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.spark_sink.landing.batches import Batches
from tests.support.frames import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.fixture
def make(world: World) -> Iterator[Callable[..., Batches]]:
    """Makes batches, and ends their threads."""
    made: list[Batches] = []

    def one(**changes: Any) -> Batches:
        made.append(world.batches(**changes))
        return made[-1]

    yield one
    world.go.set()
    for each in made:
        each.close()
