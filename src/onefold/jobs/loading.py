"""Loads the effect of a queue from the pipeline's declaration."""

from typing import Any

from onefold.config.errors import UserError, first_line
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE
from onefold.jobs.context import Context
from onefold.jobs.protocols import Effect
from onefold.pipelines import InvalidDeclaration, Pipeline
from onefold.processor.core.errors import Misconfigured, Refused, Retriable
from onefold.processor.io import contracts
from onefold.processor.io.contracts import RecordSchema

# The methods of an effect. A factory function of an effect lacks these methods.
_METHODS = ("before", "steps", "finish", "stands")


def effect_of(pipeline: Pipeline, queue: str, context: Context) -> Effect:
    """Return the effect of a queue. Calls the factory function, if declared.

    Raises:
        Misconfigured: the declared object is not an effect, or a setting of the effect is wrong.
        Retriable: the factory function fails, for example during an outage of a server.
    """
    found = declared(pipeline, queue)
    where = _where(pipeline, queue)
    if not _is_effect(found):
        try:
            found = found(context)
        except UserError as error:
            kind = Retriable if error.exit_code == UNAVAILABLE else Misconfigured
            raise kind(error.code, f"{where}: {error.message}") from error
        except Exception as error:
            raise Retriable(
                Code.JOBS_WRONG, f"{where}, which fails: {type(error).__name__}: {first_line(error)}"
            ) from error
    if lacks := _lacks(found):
        raise Misconfigured(
            Code.JOBS_WRONG, f"{where}, which makes a {type(found).__name__} without {lacks[0]}, and no effect"
        )
    effect: Effect = found
    return effect


def declared(pipeline: Pipeline, queue: str) -> Any:
    """Return the declared effect or factory function of a queue, without access to a server. Raises `Misconfigured`."""
    try:
        found = pipeline.load_job(queue)
    except InvalidDeclaration as fault:
        raise Misconfigured(Code.JOBS_WRONG, str(fault)) from fault
    if not (_is_effect(found) or callable(found)):
        lacks = _lacks(found)[0]
        raise Misconfigured(
            Code.JOBS_WRONG, f"{_where(pipeline, queue)}, which has no {lacks}, and is no function that makes an effect"
        )
    return found


def contract_of(pipeline: Pipeline, queue: str) -> RecordSchema:
    """Return the schema of a queue's records. Raises `Misconfigured`."""
    try:
        found = contracts.load(pipeline.contracts, (queue,))
    except Refused as fault:
        raise Misconfigured(fault.code, str(fault)) from fault
    if queue not in found:
        raise Misconfigured(
            Code.SCHEMA_MISSING, f'no schema in {pipeline.contracts} names the topic {queue} in its "topics"'
        )
    return found[queue]


def _where(pipeline: Pipeline, queue: str) -> str:
    return f"{pipeline.declared_in}: jobs.{queue} names {pipeline.jobs[queue]}"


def _is_effect(found: object) -> bool:
    # A class is a factory function.
    return not (isinstance(found, type) or _lacks(found))


def _lacks(found: object) -> list[str]:
    lacking = [name for name in _METHODS if not callable(getattr(found, name, None))]
    return lacking if hasattr(found, "ordered") else ["ordered", *lacking]
