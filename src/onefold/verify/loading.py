"""The verification model of a pipeline, from the module that the pipeline declares."""

from onefold import pipelines
from onefold.error_codes import Code, CodedError
from onefold.verify.expect import Workload


class UnknownDomain(CodedError):
    """The pipeline, or its verification model, does not exist."""


def workload(domain: str) -> Workload:
    """The WORKLOAD of the module declared as a pipeline's verification model.

    Raises:
        UnknownDomain: The pipeline does not exist, declares no model, or its model cannot be loaded.
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
