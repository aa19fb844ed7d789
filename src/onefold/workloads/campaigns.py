"""Verification model of `campaigns`: sends of A/B campaigns, and the expected totals.

The rules of the model: a campaign and the instant of a date identify a send. Among all records of a send, the greatest
(version, sent, email, subject) is effective. A send of 0 mails is withdrawn: its row stays, but the send counts nowhere. The
counting sends, by date, fill slot 1, slot 2, and a sum of the rest. A campaign has the email and subject of its last counting
send, or else of its last send. A campaign has at most 1,000 sends.

The generated input has campaigns with one to four sends an hour apart, repeated records, records in any order, and dates in
every form. Counts are corrected upwards, or downwards with a version, and some sends are moved to a new date.
"""

import random
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from onefold.verify.decode import Inadmissible
from onefold.verify.expect import Column, Table, View, Workload
from onefold.verify.models import TrackedRows
from onefold.verify.record import Source
from onefold.workloads.shaping import Input, StreamShape, shaped

TOPIC = "campaigns.sends"
SENDS_MAX = 1000
TEXT_MAX = 500

TOTALS = Table(
    "campaigns.totals",
    "campaigns.totals",
    ("id",),
    but=(Column("date_1", "timestamp"), Column("date_2", "timestamp"), Column("computed", "long", generated=True)),
)
SENDS = Table("campaigns.sends", "campaigns.accepted", ("id", "date"), but=(Column("date", "timestamp"),))
FROM_SENDS = View("campaigns.totals_from_sends", TOTALS.name, ("id", "email", "subject", "sends", "computed"))

_Send = tuple[int, int, str, str]  # version, sent, email, subject, in the order of comparison


class CampaignsModel:
    """The expected rows for a log of sends. Totals are never stored, but summed from all sends on each access."""

    def __init__(self) -> None:
        self._campaigns: dict[int, dict[datetime, _Send]] = {}
        self._changes: dict[int, tuple[int, Source]] = {}
        self._totals = _Totals(self._campaigns, self._changes)
        self._sends = TrackedRows()
        self.rows: dict[str, Mapping[tuple[Any, ...], Any]] = {TOTALS.name: self._totals, SENDS.name: self._sends}

    def key(self, value: dict[str, Any], source: Source) -> str:
        """The campaign, which identifies the state of a send."""
        return str(value["id"])

    def apply(self, value: dict[str, Any], source: Source) -> bool:
        """Store the record if its values are greater than the stored values of its send."""
        date = _admit(value)
        campaign = value["id"]
        sends = self._campaigns.setdefault(campaign, {})
        send = (value["version"], value["sent"], value["email"], value["subject"])
        if date in sends and send <= sends[date]:
            return False
        if date not in sends and len(sends) == SENDS_MAX:
            raise Inadmissible(f"more than {SENDS_MAX} sends")
        sends[date] = send
        version, sent, email, subject = send
        self._sends[campaign, date] = (campaign, date, sent, email, subject, version), source
        changes, _ = self._changes.get(campaign, (0, source))
        self._changes[campaign] = changes + 1, source
        self._totals.changed.append((campaign,))
        return True

    def settle(self) -> None:
        """Do nothing, because each access sums the totals."""


class _Totals(Mapping[tuple[Any, ...], Any]):
    """The rows of `campaigns.totals`, computed on each access."""

    def __init__(self, campaigns: dict[int, dict[datetime, _Send]], changes: dict[int, tuple[int, Source]]) -> None:
        self._campaigns = campaigns
        self._changes = changes
        self.changed: list[tuple[Any, ...]] = []

    def __getitem__(self, key: tuple[Any, ...]) -> Any:
        changes, source = self._changes[key[0]]
        return _totals(key[0], self._campaigns[key[0]], changes), source

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return ((campaign,) for campaign in self._changes)

    def __len__(self) -> int:
        return len(self._changes)

    def __contains__(self, key: Any) -> bool:
        return key[0] in self._changes


def _totals(campaign: int, sends: dict[datetime, _Send], changes: int) -> tuple[Any, ...]:
    counting = [(date, sends[date]) for date in sorted(sends) if sends[date][1] > 0]
    _, _, email, subject = counting[-1][1] if counting else sends[max(sends)]
    slots: list[Any] = [None, None, None, None]
    for slot, (date, send) in enumerate(counting[:2]):
        slots[2 * slot : 2 * slot + 2] = [date, send[1]]
    rest = [send[1] for _, send in counting[2:]]
    total = sum(send[1] for _, send in counting)
    return campaign, email, subject, *slots, sum(rest) if rest else None, len(counting), changes, total


# The form of a date: seconds are required, a fraction has up to six digits, and an offset has hours and minutes.
_DATE = re.compile(r"[0-9-]{10}[ T][0-9:]{8}(?:\.([0-9]{1,6}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?")


def _admit(value: dict[str, Any]) -> datetime:
    if value["version"] < 0 or not 0 <= value["sent"] <= 10**12:
        raise Inadmissible("sent or version is out of range")
    if len(value["email"]) > TEXT_MAX or len(value["subject"]) > TEXT_MAX:
        raise Inadmissible(f"email or subject has more than {TEXT_MAX} characters")
    return instant(value["date"])


def instant(text: str) -> datetime:
    """The instant of a date as a naive datetime in UTC. Raises `Inadmissible` for an invalid date."""
    match = _DATE.fullmatch(text)
    if not match:
        raise Inadmissible("date has another form than '2021-12-01 12:00:00'")
    fraction, sign, hours, minutes = match.groups()
    try:
        moment = _wall_clock(text).replace(microsecond=int((fraction or "0").ljust(6, "0")))
        if sign is None:
            return moment
        if int(hours) > 23 or int(minutes) > 59:
            raise Inadmissible("date has an offset that no clock shows")
        ahead = timedelta(hours=int(hours), minutes=int(minutes))
        return moment - ahead if sign == "+" else moment + ahead
    except (ValueError, OverflowError):
        raise Inadmissible("there is no such date") from None


def _wall_clock(text: str) -> datetime:
    """Parse `2021-12-01 12:00:00` by position. Raises ValueError for any different form."""
    parts = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)", text[:19])
    if not parts:
        raise ValueError(text)
    year, month, day, hour, minute, second = map(int, parts.groups())
    return datetime(year, month, day, hour, minute, second)


WORKLOAD = Workload("campaigns", (TOPIC,), (TOTALS, SENDS), CampaignsModel, (FROM_SENDS,))

# --- input

_TEXT = b'{"id": %d, "email": "%b", "subject": "%b", "sent": %d, "date": "%b"}'
_TEXT_VERSION = b'{"id": %d, "email": "%b", "subject": "%b", "sent": %d, "date": "%b", "version": %d}'
_FIRST = datetime(2021, 12, 1, 12, tzinfo=UTC)
_SUBJECTS = (
    b"A",
    b"B",
    b"Two for one",
    b"Zwei f\xc3\xbcr eins",
    b"\xe4\xba\x8c\xe5\x80\x8b",
    b"\\ud83c\\udf81 for you",
)


# Enough records of a campaign for frequent third sends and corrections.
_RECORDS_A_CAMPAIGN = 6


def generate(
    seed: int, count: int, *, shape: StreamShape | None = None, campaigns: int | None = None
) -> Iterator[Input]:
    """Generate `count` inputs. Equal seeds give equal inputs. The three messages of the second seed document come first."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    campaigns = campaigns or max(1, count // _RECORDS_A_CAMPAIGN)
    return shaped(rng, count, _sends(rng, campaigns), shape or StreamShape())


def _sends(rng: random.Random, campaigns: int) -> Iterator[Input]:
    yield _input(1, b"A", b"A", 100, b"2021-12-01 12:00:00")
    yield _input(2, b"B", b"B", 100, b"2021-12-01 12:00:00")
    yield _input(1, b"A", b"A", 1000, b"2021-12-01 13:00:00")
    draw = rng.random
    while True:
        chance, number = draw(), 3 + int(draw() * campaigns)
        # A campaign's number determines its dates, so that separately generated records refer to the same sends.
        start = _FIRST + timedelta(minutes=number % 1440, days=number % 365)
        hour = int(draw() * draw() * 4)
        date = _spell(start + timedelta(hours=hour), int(draw() * 5))
        email, subject = b"%b%d@example.org" % (b"ab"[number % 2 :][:1], number), _SUBJECTS[number % len(_SUBJECTS)]
        sent = (100 if hour == 0 else 1000) + number % 7
        if chance < 0.85:
            yield _input(number, email, subject, sent, date)
        elif chance < 0.93:
            yield _input(number, email, subject, sent + int(draw() * 50), date)
        elif chance < 0.97:
            yield _input(number, email, subject, sent - 1 - int(draw() * 50), date, 1 + int(draw() * 3))
        else:
            # Move the send by half an hour: withdraw the old date, and send the new date.
            version = 1 + int(draw() * 3)
            yield _input(number, email, subject, 0, date, version)
            yield _input(number, email, subject, sent, _spell(start + timedelta(hours=hour, minutes=30), 0), version)


def _input(number: int, email: bytes, subject: bytes, sent: int, date: bytes, version: int = 0) -> Input:
    if version:
        return Input(TOPIC, b"%d" % number, _TEXT_VERSION % (number, email, subject, sent, date, version))
    return Input(TOPIC, b"%d" % number, _TEXT % (number, email, subject, sent, date))


def _spell(moment: datetime, way: int) -> bytes:
    """The text of an instant in the form `way`: 1 to 3 for forms with an offset, else the plain form."""
    if way == 1:
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    if way == 2:
        return (moment + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S+02:00").encode()
    if way == 3:
        return (moment - timedelta(hours=5, minutes=30)).strftime("%Y-%m-%d %H:%M:%S.000-05:30").encode()
    return moment.strftime("%Y-%m-%d %H:%M:%S").encode()
