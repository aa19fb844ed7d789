"""The verification model of a pipeline, from the module that the pipeline declares."""

from onefold import pipelines
from onefold.error_codes import Code, CodedError
from onefold.verify.expect import Workload


class UnknownDomain(CodedError):
    """There is no workload of that name."""


def workload(domain: str) -> Workload:
    """The WORKLOAD of the module that a pipeline declares as its workload.

    Raises:
        UnknownDomain: there is no such pipeline, it has no workload, or that does not load.
    """
    try:
        pipeline = pipelines.find()[domain]
        module = pipeline.load_workload()
    except pipelines.Faulty as fault:
        raise UnknownDomain(Code.PIPELINE_WRONG, str(fault)) from fault
    if module is None:
        raise UnknownDomain(
            Code.MODEL_WRONG,
            f"no model: {pipeline.declared_in} names no verification model for {domain}; write a module with"
            " WORKLOAD = model(...), which says what rows its inputs make, and name it there (`onefold docs pipeline`, The"
            " model)",
        )
    found = getattr(module, "WORKLOAD", None)
    if not isinstance(found, Workload):
        raise UnknownDomain(
            Code.MODEL_WRONG,
            f"no model: {module.__name__} has no WORKLOAD = model(...), which says what rows its inputs make",
        )
    return found
