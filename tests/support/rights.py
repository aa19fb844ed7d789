"""Generate the tables of docs/rights.md from the declarations: `python -m tests.support.rights` writes them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from onefold.operate.acls import VERBS, Acl, KafkaService, acls_of
from onefold.operate.grants import rights_of
from onefold.pipelines import find
from onefold.rights import DatabaseRole, Right

PAGE = Path(__file__).parents[2] / "docs" / "rights.md"
#: A pipeline with every kind of topic, and with jobs.
EXAMPLE = "sheets"
ROLES = {
    DatabaseRole.OWNER: "`migrate`, `reset`, `rebuild`; owns all schemas and tables",
    DatabaseRole.SINK: "`sink`",
    DatabaseRole.WORKER: "`work`, `jobs requeue`",
    DatabaseRole.READER: "`dashboard`, `status`, `explain`",
    DatabaseRole.VERIFIER: "`verify`, `audit`",
}


def postgres() -> list[str]:
    """Rows of the table about PostgreSQL."""
    pipeline = find()[EXAMPLE]
    lines = ["| role | runs | right | on |", "|---|---|---|---|"]
    for role in DatabaseRole:
        for on, same in groupby(rights_of(role, [pipeline]), lambda right: str(right).partition(" on ")[2]):
            lines.append(f"| {role.value} | {ROLES[role]} | {_privileges(list(same))} | {on} |")
    return lines


def _privileges(rights: list[Right]) -> str:
    return ", ".join(right.privilege for right in rights)


def kafka() -> list[str]:
    """Rows of the table about Kafka."""
    lines = ["| service | runs | operation | on |", "|---|---|---|---|"]
    for service in KafkaService:
        acls = acls_of(service, [find()[EXAMPLE]])
        by_resource = {on: _operations(same) for on, same in _grouped(acls).items()}
        together: dict[tuple[str, str], list[str]] = {}
        for (kind, name), operations in by_resource.items():
            together.setdefault((kind, operations), []).append(f"`{name}`")
        for (kind, operations), names in together.items():
            many = "s" if len(names) > 1 else ""
            lines.append(f"| {service.value} | {VERBS[service]} | {operations} | {kind}{many} {', '.join(names)} |")
    return lines


def _grouped(acls: list[Acl]) -> dict[tuple[str, str], list[Acl]]:
    found: dict[tuple[str, str], list[Acl]] = {}
    for acl in acls:
        found.setdefault((acl.kind, acl.name + "*" * acl.prefixed), []).append(acl)
    return found


def _operations(acls: list[Acl]) -> str:
    return ", ".join(acl.operation for acl in acls)


def page(text: str) -> str:
    """The page with new tables, each between two comments."""
    for name, lines in (("postgres", postgres()), ("kafka", kafka())):
        before, begin, rest = text.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = before + begin + "\n" + "\n".join(lines) + "\n\n" + end + after
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
