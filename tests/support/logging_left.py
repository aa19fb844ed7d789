"""Restore the logging setup after each test, because a command started in pytest's process changes the setup."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog

_KEEPS_ITS_LOGGER = "bind"


@pytest.fixture(autouse=True)
def _logging_is_left() -> Iterator[None]:
    with left_logging():
        yield


@contextmanager
def left_logging() -> Iterator[None]:
    """Restore the setup of structlog and of the root logger after the block."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = [*root.handlers], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        if structlog.get_config() != before:
            structlog.configure(**before)
            _forget_loggers()


def _forget_loggers() -> None:
    """Reset cached loggers, because with `cache_logger_on_first_use` a module's logger keeps the old setup in its `bind`."""
    kind = type(structlog.get_logger())
    for module in [*sys.modules.values()]:
        for value in [*vars(module).values()]:
            if type(value) is kind:
                vars(value).pop(_KEEPS_ITS_LOGGER, None)
