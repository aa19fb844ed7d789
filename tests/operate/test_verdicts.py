"""The last verdict stays in the database, where that is possible."""

import psycopg
import pytest

from onefold.operate import verdicts
from onefold.verify.verdict import INVALID, UNKNOWN, VALID, Finding, Verdict
from tests.support.migrated import migrate_all
from tests.support.site import ROOT

pytestmark = pytest.mark.promise("audit-may-be-killed")


def test_the_last_verdict_takes_the_place_of_the_one_before(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    for outcome in (INVALID, VALID):
        said = Verdict("shop", outcome, "a reason", counts={"records": 3}, offsets={"shop.sales": {0: 4}})
        assert verdicts.keep(said, database) == ""

    with psycopg.connect(database) as connection:
        kept = connection.execute("SELECT domain, outcome, reason, counts, offsets FROM onefold.verdict").fetchall()
    assert kept == [("shop", VALID, "a reason", {"records": 3}, {"shop.sales": {"0": 4}})]


def test_what_verify_found_wrong_is_not_taken_back_by_an_auditor(database: str) -> None:
    """It does not judge all of it, and may find wrong what was right for `verify`. Nor is it by a `verify` that cannot tell."""
    migrate_all(database, ROOT / "sql")
    turns = [
        (verdicts.AUDIT, INVALID, INVALID),
        (verdicts.AUDIT, VALID, INVALID),
        (verdicts.AUDIT, UNKNOWN, INVALID),
        (verdicts.VERIFY, UNKNOWN, INVALID),
        (verdicts.VERIFY, VALID, VALID),
        (verdicts.AUDIT, INVALID, INVALID),
        (verdicts.VERIFY, INVALID, INVALID),
        (verdicts.AUDIT, VALID, INVALID),
        (verdicts.VERIFY, VALID, VALID),
        (verdicts.AUDIT, UNKNOWN, UNKNOWN),
        (verdicts.AUDIT, VALID, VALID),
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        for judge, outcome, stands in turns:
            assert verdicts.keep(Verdict("shop", outcome, "a reason"), database, judge) == ""
            assert connection.execute("SELECT outcome FROM onefold.verdict").fetchone() == (stands,), (judge, outcome)


def test_only_a_verify_that_has_compared_each_output_record_takes_back_what_was_found(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    with psycopg.connect(database, autocommit=True) as connection:
        for uncompared, outcome, stands in [
            (0, INVALID, INVALID),
            (1, VALID, INVALID),
            (0, VALID, VALID),
            (1, INVALID, INVALID),
        ]:
            assert verdicts.keep(Verdict("shop", outcome, "a reason", uncompared=uncompared), database) == ""
            assert connection.execute("SELECT outcome FROM onefold.verdict").fetchone() == (stands,)


def test_a_wrong_state_is_taken_back_only_by_a_verify_that_has_compared_the_states(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    wrong, row = Finding("wrong state", "shop.changelog"), Finding("extra row", "shop.sales")
    turns: list[tuple[str, str, int | None, list[Finding], list[str]]] = [
        (verdicts.VERIFY, INVALID, 3, [row, wrong], ["extra row", "wrong state"]),
        (verdicts.VERIFY, VALID, None, [], ["extra row", "wrong state"]),
        (verdicts.VERIFY, INVALID, None, [row], ["extra row", "wrong state"]),
        (verdicts.AUDIT, INVALID, None, [row], ["extra row", "wrong state"]),
        (verdicts.VERIFY, UNKNOWN, 3, [], ["extra row", "wrong state"]),
        (verdicts.VERIFY, INVALID, 3, [row], ["extra row"]),
        (verdicts.VERIFY, VALID, None, [], []),
        (verdicts.VERIFY, INVALID, 3, [wrong], ["wrong state"]),
        (verdicts.VERIFY, VALID, 3, [], []),
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        for judge, outcome, states, findings, stands in turns:
            said = Verdict("shop", outcome, "a reason", findings=findings, states=states)
            assert verdicts.keep(said, database, judge) == ""
            ((kept,),) = connection.execute("SELECT findings FROM onefold.verdict").fetchall()
            assert [kind for kind, _ in kept["kinds"]] == stands, (judge, outcome)


def test_what_an_auditor_found_stands_when_it_dies(database: str) -> None:
    """It finds more; and the next one, which finds something else, or the same and more, or nothing."""
    migrate_all(database, ROOT / "sql")
    ledger, row, other = (Finding(kind, "shop.sales") for kind in ("ledger went back", "different row", "extra row"))
    turns = [
        (verdicts.AUDIT, [ledger], ["ledger went back"]),
        (verdicts.AUDIT, [ledger, row], ["ledger went back", "different row"]),
        (verdicts.AUDIT, [row], ["ledger went back", "different row"]),
        (verdicts.AUDIT, [], ["ledger went back", "different row"]),
        (verdicts.AUDIT, [row, other, ledger], ["different row", "extra row", "ledger went back"]),
        (verdicts.VERIFY, [other], ["extra row"]),
        (verdicts.AUDIT, [other, row], ["extra row"]),
    ]
    with psycopg.connect(database, autocommit=True) as connection:
        for judge, findings, stands in turns:
            said = Verdict("shop", INVALID if findings else VALID, "a reason", findings=findings)
            assert verdicts.keep(said, database, judge) == ""
            ((kept,),) = connection.execute("SELECT findings FROM onefold.verdict").fetchall()
            assert [one["kind"] for one in kept["first"]] == stands


def test_a_few_findings_stay_as_texts(database: str) -> None:
    """Whatever is in them, and however many there are: those who look are told the first, and how many of what."""
    migrate_all(database, ROOT / "sql")
    wrong = Finding(
        "different row",
        "shop.sales",
        {"id": 1},
        {"item": ("a", "\0\u202e" + "b" * 999), "at": (None, 2)},
        None,
        "s/0/1",
    )
    verdict = Verdict("shop", INVALID, "a reason", findings=[wrong, Finding("extra row", "shop.sales"), *[wrong] * 40])
    assert verdicts.keep(verdict, database) == ""

    with psycopg.connect(database) as connection:
        ((kept,),) = connection.execute("SELECT findings FROM onefold.verdict").fetchall()
    assert kept["kinds"] == [["extra row", 1], ["different row", 41]]
    assert len(kept["first"]) == verdicts.KEPT_MAX
    assert kept["first"][0] == {
        "kind": "different row", "where": "shop.sales", "key": "id 1", "output": None, "source": "s/0/1",
        "what": f"item: \\x00\\u202e{'b' * 198}, should be a; at: 2, should be NULL",
    }  # fmt: skip


def test_what_it_covers_stays(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    said = Verdict("shop", VALID, "a reason", begins={"shop.sales": {0: 4}}, outputs=3, rows=2)
    said.not_judged = {"shop.extra": "a\0reason", "shop.sales.note": ""}
    assert verdicts.keep(said, database) == ""
    with psycopg.connect(database) as connection:
        ((kept,),) = connection.execute("SELECT coverage FROM onefold.verdict").fetchall()
    not_judged = [["shop.extra", "a\\x00reason"], ["shop.sales.note", ""]]
    covered = {"outputs": 3, "rows": 2, "uncompared": 0}
    assert kept == {"from": {"shop.sales": {"0": 4}}, **covered, "not_judged": not_judged}


def test_where_it_cannot_be_kept_one_sentence_says_so(database: str) -> None:
    """Without the table, by a role that may only read, and without a database."""
    said = Verdict("shop", VALID, "a reason")
    assert "onefold migrate" in verdicts.keep(said, database)
    migrate_all(database, ROOT / "sql")
    only_reading = psycopg.conninfo.make_conninfo(database, options="-c role=pg_read_all_data")
    for dsn in (only_reading, "postgresql://nobody@127.0.0.1:1/none"):
        assert "was not kept" in verdicts.keep(said, dsn)
