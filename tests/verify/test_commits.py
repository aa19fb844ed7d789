"""Where the transactions of a pipeline end in its inputs."""

import pytest

from onefold.verify.commits import Commits
from onefold.verify.record import Source


def known() -> Commits:
    """Of two inputs: the first transaction has offsets 0 to 2 of the one, the second 3 and 4 of it, and all of the other."""
    commits = Commits()
    commits.add(0, 7, {"one": 3})
    commits.add(0, 8, {"other": 2, "one": 5})
    return commits


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        (("one", 0), ("one", 2), False),
        (("one", 2), ("one", 3), True),
        (("one", 3), ("other", 0), False),
        (("one", 2), ("other", 0), True),
        (("one", 4), ("one", 5), True),
        (("one", 5), ("one", 6), False),
        (("unknown", 0), ("unknown", 9), False),
    ],
)
def test_two_records_are_in_other_transactions_if_one_ended_between_them(
    one: tuple[str, int], other: tuple[str, int], part: bool
) -> None:
    commits = known()
    assert commits.part(Source(one[0], 0, one[1]), Source(other[0], 0, other[1])) is part
    assert not commits.part(Source(one[0], 1, one[1]), Source(other[0], 1, other[1])), "of another task"


def test_ends_that_come_again_or_were_forgotten_say_nothing_new() -> None:
    commits = known()
    commits.add(0, 9, {"one": 3})
    commits.forget({("one", 0): 4})
    assert not commits.part(Source("one", 0, 0), Source("one", 0, 4))
    assert commits.part(Source("one", 0, 4), Source("one", 0, 5))
    commits.forget({("one", 0): 5})
    assert not commits.part(Source("one", 0, 4), Source("one", 0, 5))
