"""Create the tables of all pipelines of a folder, as `onefold migrate` does."""

from pathlib import Path

from onefold.spark_sink.contracts import ENGINE_SQL
from onefold.spark_sink.postgres.schema import ENGINE, migrate


def migrate_all(dsn: str, sql_root: Path) -> list[str]:
    """Apply Onefold's own files, then those of every pipeline in `sql_root`. Returns the names of the applied files."""
    pipelines = {path.name.partition(".")[0] for path in (sql_root / "schema").glob("*.sql")} - {ENGINE}
    applied = migrate(dsn, ENGINE, ENGINE_SQL)
    return applied + [file for pipeline in sorted(pipelines) for file in migrate(dsn, pipeline, sql_root)]
