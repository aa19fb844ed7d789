"""What a service says of its guarantee when it starts, and when it does not start because of it."""

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
    """What is called when Kafka is there. Raises `Refused` of the processor."""

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
    """What is called with a domain, the topics that are landed, and the sink's session in PostgreSQL, whenever its query is
    about to start. Says only what it has not just said. Raises `Refused` of the sink.
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
    """The promise first; what is not as it should be as warnings."""
    promise, *rest = lines
    (log.info if found.holds else log.warning)(f"{name}: {promise}")
    for line in rest:
        log.warning(f"{name}: {line}")
