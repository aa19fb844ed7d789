"""One door to PostgreSQL: a session that is opened elsewhere has what a role or a database sets."""

import ast

from tests.support.rooms import ROOT, modules, nodes

DOOR = "onefold.postgres"

CONNECTS = (
    "psycopg.connect",
    "psycopg.Connection.connect",
    "psycopg.AsyncConnection.connect",
    "AsyncConnection.connect",
)


def opened(name: str) -> list[str]:
    """Where a module opens sessions by itself."""
    path = modules()[name]
    found = [node.lineno for node in nodes(path) if isinstance(node, ast.Attribute) and ast.unparse(node) in CONNECTS]
    hidden = [
        node.lineno
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] in ("psycopg", "psycopg_pool")
        and any(alias.name in ("connect", "ConnectionPool", "AsyncConnectionPool") for alias in node.names)
    ]
    return [f"{path.relative_to(ROOT)}:{line}" for line in (*found, *hidden)]


def test_the_door_opens_sessions() -> None:
    """What the other test looks for is what opens one."""
    assert opened(DOOR)


def test_no_other_module_opens_a_session_of_postgresql() -> None:
    product = [name for name in modules() if name != DOOR and not name.startswith("tests")]
    assert len(product) > 200
    assert [place for name in product for place in opened(name)] == []
