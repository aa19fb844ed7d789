"""Show values of records to people and as JSON: decoded with the contracts of a pipeline, or as raw bytes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onefold.config.errors import UserError
from onefold.operate.record_reader import Stored
from onefold.processor import loading
from onefold.processor.core.errors import ProcessorError
from onefold.processor.core.fold import tombstone_key
from onefold.processor.core.topology import Topology
from onefold.processor.core.values import Record
from onefold.processor.io import contracts
from onefold.processor.io.logical_types import spelled
from onefold.processor.io.serde import AvroCodec

if TYPE_CHECKING:
    from onefold.pipelines import Pipeline

# Enough of undecodable bytes to recognize their kind.
RAW_MAX = 2_000

Fields = dict[str, Any]


class Values:
    """Decodes the inputs and outputs of a pipeline.

    Raises:
        UserError: the pipeline's contracts cannot be used.
    """

    def __init__(self, pipeline: Pipeline, topology: Topology, schema_registry_url: str | None) -> None:
        self.topology = topology
        try:
            self._codec = loading.codec_of(topology, schema_registry_url)
            found = contracts.load(pipeline.contracts, (*topology.inputs, *topology.outputs))
        except ProcessorError as fault:
            raise UserError(fault.code, str(fault)) from None
        # Outputs are decoded as the inputs of a downstream pipeline.
        written = Topology(topology.name, tuple(topology.outputs), lambda value: "", dict, _never, {})
        self._outputs = AvroCodec(written, found)

    def value(self, stored: Stored) -> Any:
        """The value as passed to a handler, None for a tombstone. Raises `ProcessorError` if the value violates its contract,
        or no registry answers.
        """
        record = Record(*stored.place, stored.key, stored.value)
        codec = self._codec if stored.place.topic in self.topology.reads else self._outputs
        return codec.decode(record)

    def fields(self, stored: Stored) -> tuple[Fields | None, str | None]:
        """(the fields for JSON, None), or (None, the problem)."""
        topic = stored.place.topic
        if topic not in self.topology.reads and topic not in self.topology.outputs:
            return None, f"{topic} is no topic of {self.topology.name}"
        try:
            return plain(self.value(stored)), None
        except ProcessorError as error:
            return None, str(error)

    def key_of(self, stored: Stored) -> str | None:
        """The state key of an input record; None if unknown."""
        choose = self.topology.keys.get(stored.place.topic)
        if choose is None:
            return None
        try:
            value = self.value(stored)
            return str(choose(value)) if value is not None else tombstone_key(stored.key)
        except Exception:  # noqa: BLE001 - a user's function, over anybody's bytes: then nothing is said of the state
            return None


def _never(state: Any, event: Any) -> Any:
    raise AssertionError("nothing is folded here")


def plain(value: Any) -> Any:
    """Convert a decoded value to JSON types: objects, lists, texts, numbers."""
    names = getattr(type(value), "__struct_fields__", None)
    if names is not None:
        parts = ((name, getattr(value, name)) for name in names)
        return {name: plain(part) for name, part in parts if part is not contracts.UNSET}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return spelled(value)


def readable(data: bytes | None) -> str | None:
    """Show bytes as text: UTF-8 with escapes for invalid bytes, and truncated after `RAW_MAX` bytes."""
    if data is None:
        return None
    shown = data[:RAW_MAX].decode("utf-8", "backslashreplace")
    return shown if len(data) <= RAW_MAX else f"{shown}… ({len(data):,} bytes)"


def header(stored: Stored, name: str) -> str | None:
    """The last header with this name, as text; None if missing or not UTF-8."""
    found = [value for given, value in stored.headers if given == name]
    try:
        return found[-1].decode() if found and found[-1] is not None else None
    except UnicodeDecodeError:
        return None


def moment(at_ms: int | None) -> str:
    """Show milliseconds since 1970 as date and time, UTC. A timestamp outside of the calendar is shown as a number."""
    if at_ms is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03} UTC"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def differences(before: Any, after: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """The (before, after) values of differing fields, by path as in `sends.sent`. A missing value is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        found: dict[str, tuple[Any, Any]] = {}
        for name in [*before, *(name for name in after if name not in before)]:
            below = f"{path}.{name}" if path else name
            found |= differences(before.get(name), after.get(name), below)
        return found
    return {} if same(before, after) else {path: (before, after)}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal; 1 and True are different."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
