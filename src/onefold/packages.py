"""How packages that are missing are installed. The standard library only."""

from __future__ import annotations

from importlib.metadata import version


def install(extras: str, verb: str = "") -> str:
    """The command that installs the extras from a wheel, and that of a checkout.

    The wheel is named by its file: by the name `onefold` pip would ask an index, on which that name is nobody's yet.

    Args:
        extras: with commas between them.
        verb: what is wanted in the checkout.
    """
    wheel = f"./onefold-{version('onefold')}-py3-none-any.whl"
    return (
        f"pip install '{wheel}[{extras}]' in the folder of the wheel, "
        + f"or in a checkout ONEFOLD_PACKAGES=all ./onefold {verb}".rstrip()
    )
