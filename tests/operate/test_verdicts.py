"""The last verdict stays in the database, where that is possible."""

import psycopg

from onefold.operate import verdicts
from onefold.proof.verdict import INVALID, VALID, Verdict
from tests.support.migrated import migrate_all
from tests.support.site import ROOT


def test_the_last_verdict_takes_the_place_of_the_one_before(database: str) -> None:
    migrate_all(database, ROOT / "sql")
    for outcome in (INVALID, VALID):
        said = Verdict("shop", outcome, "a reason", counts={"records": 3}, offsets={"shop.sales": {0: 4}})
        assert verdicts.keep(said, database) == ""

    with psycopg.connect(database) as connection:
        kept = connection.execute("SELECT domain, outcome, reason, counts, offsets FROM onefold.verdict").fetchall()
    assert kept == [("shop", VALID, "a reason", {"records": 3}, {"shop.sales": {"0": 4}})]


def test_where_it_cannot_be_kept_one_sentence_says_so(database: str) -> None:
    """Without the table, in a database that may only be read, and without a database."""
    said = Verdict("shop", VALID, "a reason")
    assert "onefold prepare" in verdicts.keep(said, database)
    migrate_all(database, ROOT / "sql")
    only_reading = psycopg.conninfo.make_conninfo(database, options="-c default_transaction_read_only=on")
    for dsn in (only_reading, "postgresql://nobody@127.0.0.1:1/none"):
        assert "was not kept" in verdicts.keep(said, dsn)
