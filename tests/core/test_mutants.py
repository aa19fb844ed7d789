"""What `onefold test --mutants` changes: what a test should notice, and nothing that only people read."""

import ast
from pathlib import Path

from tests.support.mutants import ROOMS, ROOT, mutants

SOURCE = '''
"""Text 1."""
PAUSE_S = 5
Place = tuple[str, 1]
log = get_logger()


def told(x: "int | None" = 1) -> int:
    """Text 2."""
    log.info("said", n=3)
    if not x and x > 1:
        raise ValueError(f"{x + 1} is no x")
    found: dict[str, int] = {"ä": x - 1}
    found.update(x)
    for one in found:
        if one in found:
            continue
        x += one
    return found
'''


def test_each_change_is_of_code_and_leaves_code(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE, encoding="utf-8")
    made = list(mutants(str(path)))
    assert [(one.before, one.after) for one in made] == [
        ("not x and x > 1", "(not x or x > 1)"),
        ("not x", "(x)"),
        ("x > 1", "(x >= 1)"),
        ("1", "2"),
        ("x - 1", "(x + 1)"),
        ("1", "2"),
        ("found.update(x)", "pass"),
        ("one in found", "(one not in found)"),
        ("continue", "break"),
        ("x += one", "pass"),
        ("return found", "return None"),
        ("1", "2"),
    ]
    source = path.read_bytes()
    for one in made:
        assert " ".join(source[one.start : one.end].decode().split()) == one.before
        ast.parse(source[: one.start] + one.after.encode() + source[one.end :])


def test_every_room_has_some() -> None:
    for room in ROOMS:
        paths = [str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py")]
        assert sum(1 for path in paths for _ in mutants(path)) > 100, room
