"""The check of the guarantee at a service's start: a log line, warnings, or the refusal to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from onefold.config.guarantee import FOLDED, LANDED, Guarantee, judge
from onefold.error_codes import Code

if TYPE_CHECKING:
    import psycopg

    from onefold.config.settings import Settings
    from onefold.pipelines import Pipeline

log = structlog.get_logger()


def of_processor(settings: Settings, pipeline: Pipeline) -> Callable[[], None]:
    """A function for the processor to call after the connection to Kafka. Raises the processor's `Refused`."""

    def say() -> None:
        from onefold.operate import server_settings
        from onefold.processor.core.errors import Refused

        found = judge(server_settings.of_processor(pipeline, settings), settings.allowed())
        if refusal := found.refusal():
            raise Refused(Code.GUARANTEE_WEAKENED, refusal)
        _say(pipeline.name, found.lines(FOLDED), found)

    return say


def of_sink(
    settings: Settings, pipelines: Sequence[Pipeline]
) -> Callable[[str, Sequence[str], psycopg.Connection[Any]], None]:
    """A function for the sink to call before each start of a query, with the pipeline, the topics to write, and the sink's
    session in PostgreSQL. Logs only changes of the guarantee. Raises `Refused`.
    """
    by_name = {pipeline.name: pipeline for pipeline in pipelines}
    said: dict[str, list[str]] = {}

    def say(name: str, topics: Sequence[str], connection: psycopg.Connection[Any]) -> None:
        from onefold.operate import server_settings
        from onefold.processor.core.errors import Refused

        found = judge(server_settings.of_sink(by_name[name], topics, settings, connection), settings.allowed())
        if refusal := found.refusal():
            raise Refused(Code.GUARANTEE_WEAKENED, refusal)
        lines = found.lines(LANDED)
        if said.get(name) != lines:
            _say(name, lines, found)
        said[name] = lines

    return say


def _say(name: str, lines: Sequence[str], found: Guarantee) -> None:
    """Log the guarantee, then each weakness as a warning."""
    promise, *rest = lines
    (log.info if found.holds else log.warning)(f"{name}: {promise}")
    for line in rest:
        log.warning(f"{name}: {line}")
