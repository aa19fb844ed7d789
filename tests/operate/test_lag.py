"""Lags put together, without a broker."""

from onefold.operate.lag import Lag, _disjoint


def test_a_partition_that_two_pipelines_have_read_unequally_far_is_looked_at_twice() -> None:
    """A consumer has one position in it."""
    one, two, three = {("a", 0): (1, 9), ("b", 0): (0, 5)}, {("a", 0): (4, 9)}, {("a", 0): (1, 9), ("c", 0): (2, 3)}
    assert _disjoint([one, two, three]) == [{**one, ("c", 0): (2, 3)}, {("a", 0): (4, 9)}]


def test_what_is_unknown_on_one_side_is_unknown_together() -> None:
    assert (Lag(3, 1.0, 4, 2.0).events, Lag(3, 1.0, 4, 2.0).seconds) == (7, 2.0)
    assert (Lag(3, 1.0).events, Lag(3, 1.0).seconds) == (None, None)
    assert Lag(3, None, 0, 0.0).seconds is None
