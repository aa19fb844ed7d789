"""The schema files of a pipeline. This module imports no Postgres client, because `onefold check` runs without a client."""

from pathlib import Path

from onefold.error_codes import Code
from onefold.processor.core.errors import Misconfigured


def files(pipeline: str, sql_root: Path) -> list[Path]:
    """The schema files of the pipeline, in order.

    Raises:
        Misconfigured: the name of a file has no pipeline, so no pipeline would apply the file.
    """
    found = sorted((sql_root / "schema").glob("*.sql"))
    for path in found:
        if "." not in path.stem:
            raise Misconfigured(
                Code.SQL_WRONG,
                f"sql/schema/{path.name} does not say whose it is: name it <pipeline>.{path.stem}.sql "
                "(what was applied under the old name is not applied again)",
            )
    return [path for path in found if path.stem.partition(".")[0] == pipeline]
