"""`onefold contracts`: a contract that was overwritten comes back from Postgres, unless today's cannot read its records."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import pipelines as declared
from onefold.config.errors import UserError
from onefold.config.settings import Settings
from onefold.error_codes import Code
from onefold.exit_codes import UNAVAILABLE, USAGE
from onefold.operate import schema_versions
from onefold.processor.core.errors import Refused
from onefold.spark_sink.contracts import ENGINE_SQL, Domain, load_domain
from onefold.spark_sink.landing import known_schemas
from onefold.spark_sink.postgres.connection import connect
from onefold.spark_sink.postgres.schema import ENGINE, migrate
from tests.support.coded import raises
from tests.support.command_line import Onefold
from tests.support.made_up_domain import write_domain

pytestmark = [pytest.mark.postgres, pytest.mark.promise("earlier-contracts")]


class Project:
    """A declared pipeline, of which something has landed."""

    def __init__(self, folder: Path, checkout: Path, database: str) -> None:
        self.name, self.folder, self.database = f"t{uuid.uuid4().hex[:10]}", folder, database
        self.settings = Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn=database)
        write_domain(folder, checkout, self.name)
        (folder / "pyproject.toml").write_text(
            f'[tool.onefold.pipelines.{self.name}]\ntopology = "x:TOPOLOGY"\n', encoding="utf-8"
        )
        migrate(database, ENGINE, ENGINE_SQL)
        self.recognise()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO onefold.ledger (sink, topic, partition, next_offset, topic_id, last_offset, last_fingerprint,"
                " writer, updated_at) VALUES (%s, %s, 0, 8, 'id', 7, 1, 'test', now())",
                (self.name, f"{self.name}.notes"),
            )

    @property
    def domain(self) -> Domain:
        return load_domain(self.name, self.folder / "avro", self.folder / "sql")

    def recognise(self) -> None:
        """As a sink does when it starts."""
        with connect(self.database, "test") as connection:
            known_schemas.recognise(connection, self.domain)

    def change(self, *fields: dict[str, Any]) -> None:
        """The contract of the notes, without a word of what it was."""
        path = self.folder / f"avro/{self.name}.notes.avsc"
        path.write_text(
            json.dumps({**json.loads(path.read_text(encoding="utf-8")), "fields": list(fields)}), encoding="utf-8"
        )

    def standings(self) -> list[tuple[str, str]]:
        found = schema_versions.versions(self.name, self.settings)
        return [(version.topic.rpartition(".")[2], version.standing) for version in found]


@pytest.fixture
def project(tmp_path: Path, checkout: Path, database: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(declared.PROJECT_VARIABLE, raising=False)
    return Project(tmp_path, checkout, database)


ID, TEXT, LANG = ({"name": "id", "type": "long"}, {"name": "text", "type": "string"},
                  {"name": "lang", "type": "string", "default": "en"})  # fmt: skip


def test_what_was_overwritten_is_shown_and_comes_back(project: Project) -> None:
    assert project.standings() == [("notes", schema_versions.TODAY), ("readings", schema_versions.TODAY)]
    project.change(ID, TEXT, LANG)
    assert project.standings() == [
        ("notes", schema_versions.TODAY), ("notes", schema_versions.UNKNOWN), ("readings", schema_versions.TODAY),
    ]  # fmt: skip
    with raises(Refused, Code.SCHEMA_UNKNOWN, "--restore"):
        project.recognise()

    found = schema_versions.versions(project.name, project.settings)
    (written,) = schema_versions.restore(project.name, found)
    assert written.parent == project.folder / "avro/earlier"
    assert found[1].fingerprint[:8] in written.name
    assert project.standings() == [
        ("notes", schema_versions.TODAY), ("notes", schema_versions.EARLIER), ("readings", schema_versions.TODAY),
    ]  # fmt: skip
    project.recognise()
    assert schema_versions.restore(project.name, schema_versions.versions(project.name, project.settings)) == []


def test_going_back_is_a_change_too(project: Project) -> None:
    """The version before is told what the newer one wrote, and reads it, where that has only more."""
    project.change(ID, TEXT, LANG)
    schema_versions.restore(project.name, schema_versions.versions(project.name, project.settings))
    project.recognise()
    project.change(ID, TEXT)
    shutil.rmtree(project.folder / "avro/earlier")
    with raises(Refused, Code.SCHEMA_UNKNOWN):
        project.recognise()
    schema_versions.restore(project.name, schema_versions.versions(project.name, project.settings))
    project.recognise()


def test_one_that_today_cannot_read_is_not_put_back(project: Project) -> None:
    """Both would be refused at the next start; what is wrong is said now, and nothing is written."""
    project.change(ID, {"name": "text", "type": "long"}, {"name": "lang", "type": "string"})
    with pytest.raises(UserError) as refused:
        schema_versions.restore(project.name, schema_versions.versions(project.name, project.settings))
    said = "cannot be read as .* any more: field text was string and is long; field lang is new and has no default"
    refused.match(said)
    assert refused.value.exit_code == USAGE
    assert not (project.folder / "avro/earlier").exists()


def test_as_a_command(project: Project) -> None:
    project.change(ID, TEXT, LANG)
    run, dsn = Onefold(project.folder), project.database
    assert f"{project.name}.Notes, not in avro/" in run("contracts", project.name, ONEFOLD_POSTGRES_DSN=dsn)
    listed = json.loads(run("contracts", project.name, "--restore", "--json", ONEFOLD_POSTGRES_DSN=dsn))
    assert [version["standing"] for version in listed["contracts"]] == ["today's", "not in avro/", "today's"]
    assert [Path(path).exists() for path in listed["restored"]] == [True]


def test_a_project_that_may_not_be_written_to(project: Project) -> None:
    project.change(ID, TEXT, LANG)
    (project.folder / "avro/earlier").write_text("a file", encoding="utf-8")
    with raises(UserError, Code.FILE_UNUSABLE, "earlier"):
        schema_versions.restore(project.name, schema_versions.versions(project.name, project.settings))


def test_without_postgres_it_says_so(project: Project) -> None:
    away = Settings(bootstrap_servers="127.0.0.1:9", postgres_dsn="postgresql://127.0.0.1:9/none")
    with raises(UserError, Code.POSTGRES_SILENT) as refused:
        schema_versions.versions(project.name, away)
    assert refused.value.exit_code == UNAVAILABLE


def test_what_starts_over_may_be_anything(project: Project) -> None:
    """`onefold reset` forgets the contracts with what was landed."""
    project.change(ID)
    with connect(project.database, "test") as connection:
        known_schemas.forget(connection, project.name)
    project.recognise()
    assert project.standings() == [("notes", schema_versions.TODAY), ("readings", schema_versions.TODAY)]


def test_a_database_of_before_knows_none(project: Project) -> None:
    with psycopg.connect(project.database, autocommit=True) as connection:
        connection.execute("DROP TABLE onefold.contract")
    with connect(project.database, "test") as sink:
        known_schemas.forget(sink, project.name)
    assert project.standings() == [("notes", schema_versions.TODAY), ("readings", schema_versions.TODAY)]
