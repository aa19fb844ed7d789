"""Per domain: input worth judging, and what is right. One module a domain; nothing here imports what is judged."""

import importlib
import re

from onefold.proof.expect import Workload


class UnknownDomain(Exception):
    """There is no workload of that name."""


def workload(domain: str) -> Workload:
    """The workload of a domain, which is the module `onefold.proof.workloads.<domain>`."""
    name = f"{__name__}.{domain}"
    try:
        if not re.fullmatch("[a-z][a-z0-9_]*", domain):
            raise ModuleNotFoundError(name=name)
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UnknownDomain(f"There is no domain called {domain!r}") from None
    return module.WORKLOAD
