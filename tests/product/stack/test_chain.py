"""Two pipelines in a row: the second one's input is the first one's output, whose headers are none of its own."""

import json

import pytest

from tests.support.command_line import Onefold

pytestmark = pytest.mark.promise("headers-of-others")

CUSTOMERS = 20


def orders(version: int) -> bytes:
    """One of each customer."""
    made = [
        {"id": f"o{number}", "customer": f"c{number}", "version": version, "state": "placed", "cents": 100 * version}
        for number in range(CUSTOMERS)
    ]
    return b"".join(json.dumps(one).encode() + b"\n" for one in made)


@pytest.mark.long  # 21 s
def test_two_pipelines_in_a_row(onefold: Onefold) -> None:
    """Both are *valid*."""
    for version in (1, 2):
        onefold("produce", "orders.orders", says=orders(version))
        onefold.drained()
    assert {one[:2] for one in onefold.rows("SELECT cents, changes, customer FROM big.out")} == {(200, 2)}
    for name in ("orders", "big"):
        assert f"{name}: valid" in onefold("verify", name, "--timeout", "120")
