"""What `onefold test --mutants` changes: what a test should notice, and nothing that only people read."""

from pathlib import Path
from typing import Any

from tests.support.mutants import ROOMS, ROOT, mutants, with_mutants

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


@dataclass(frozen=True, slots=True, order=True)
class Place:
    number: int = field(compare=False)


# --- input


def generated(chance: random.Random) -> int:
    return chance.randrange(5)
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
        ("False", "True"),
        ("True", "False"),
    ], "of the dataclass its order, and nothing of what makes up inputs"


def test_one_number_chooses_between_the_mutants_of_a_module(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('def told(x: int) -> int:\n    """Text."""\n    x += 5\n    return x + 1\n', encoding="utf-8")
    sample = list(mutants(str(path)))
    found, reached = [], set[object]()
    for active in range(len(sample) + 1):

        def is_active(number: object, active: int = active) -> bool:
            reached.add(number)
            return number == active

        names: dict[str, Any] = {"__mutant__": is_active}
        exec(compile(with_mutants(str(path), sample), "module", "exec"), names)
        found.append(names["told"](2))
    assert found == [8, 3, 9, None, 6, 9]
    assert reached == {str(path), 1, 2, 3, 4, 5}


def test_every_room_has_some() -> None:
    for room in ROOMS:
        paths = [str(path.relative_to(ROOT)) for path in (ROOT / room).rglob("*.py")]
        assert sum(1 for path in paths for _ in mutants(path)) > 100, room
