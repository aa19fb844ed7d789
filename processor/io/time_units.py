"""Find numbers whose unit differs between a writer's schema and a reader's: milliseconds and microseconds are both a long."""

from collections.abc import Iterator
from typing import Any

from onefold.avro_types import key

_NAMED = ("record", "error", "enum", "fixed")


def other(writer: Any, contract: Any) -> str:
    """Return the first such place as the end of a sentence, or "". Fields match by name or alias, as Avro resolves fields.

    Args:
        writer: parsed with all logical types, as is `contract`.
    """
    return next(_Pair(writer, contract).other(writer, contract, ""), "")


class _Pair:
    def __init__(self, writer: Any, contract: Any) -> None:
        self._writer, self._contract = dict(_named(writer)), dict(_named(contract))
        self._seen: set[tuple[int, int]] = set()

    def other(self, was: Any, now: Any, path: str) -> Iterator[str]:
        was = self._writer.get(was, was) if isinstance(was, str) else was
        now = self._contract.get(now, now) if isinstance(now, str) else now
        if isinstance(was, list):
            for branch in was:
                yield from self.other(branch, now, path)
        elif isinstance(now, list):
            for branch in now:
                yield from self.other(was, branch, path)
        elif isinstance(was, dict) and isinstance(now, dict) and (id(was), id(now)) not in self._seen:
            self._seen.add((id(was), id(now)))
            yield from self._of_types(was, now, path)

    def _of_types(self, was: dict[str, Any], now: dict[str, Any], path: str) -> Iterator[str]:
        units = [key(schema)[1] if schema["type"] in ("int", "long") else "" for schema in (was, now)]
        if all(units) and units[0] != units[1]:
            yield f"{path[1:]} is a {units[0]}, and that of {{}} a {units[1]}"
        for part in ("items", "values"):
            if was["type"] == now["type"] and was["type"] in ("array", "map") and part in was:
                yield from self.other(was[part], now[part], path)
        written = {field["name"]: field for field in was.get("fields", ())}
        for field in now.get("fields", ()) if written else ():
            for name in (field["name"], *field.get("aliases", ())):
                if name in written:
                    yield from self.other(written[name]["type"], field["type"], f"{path}.{name}")


def _named(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _named(branch)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            yield schema["name"], schema
        for field in schema.get("fields", ()):
            yield from _named(field["type"])
        if schema["type"] in ("array", "map"):
            yield from _named(schema["items" if schema["type"] == "array" else "values"])
