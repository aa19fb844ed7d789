"""The command to install missing packages. The module imports only the standard library."""

from __future__ import annotations

from importlib.metadata import version


def install(extras: str, verb: str = "") -> str:
    """The commands to install extras from a wheel and from a checkout.

    The command has the wheel's file name. For the name `onefold`, pip would query an index without this package.

    Args:
        extras: The extras, separated by commas.
        verb: The verb of the command in the checkout.
    """
    wheel = f"./onefold-{version('onefold')}-py3-none-any.whl"
    return (
        f"pip install '{wheel}[{extras}]' in the folder of the wheel, "
        + f"or in a checkout ONEFOLD_PACKAGES=all ./onefold {verb}".rstrip()
    )
