"""A judge that runs looks for cycles of objects seldom, and leaves Python as it was."""

import gc

from onefold.proof.audit.auditor import Auditor
from onefold.proof.collecting import SELDOM


def test_cycles_are_looked_for_seldom_while_it_runs() -> None:
    before, meanwhile = gc.get_threshold(), list[tuple[int, ...]]()
    Auditor("runner", client={}, dsn="host=127.0.0.1 port=1").run(
        lambda standing: meanwhile.append(gc.get_threshold()), lambda pause: True, lambda standing: False
    )
    assert (meanwhile, gc.get_threshold()) == ([SELDOM], before)
