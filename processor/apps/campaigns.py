"""A/B campaigns: the number of mails of each campaign, correct under every replay, duplicate and reordering.

A campaign is mailed in several sends: 100 mails to try a subject, an hour later 1000 with the better subject. An upsert that
adds each arriving count to the stored total yields 2100 after a lost acknowledgement. This pipeline stores each send, and
computes the total from the sends.

The rule:

- A campaign and a date identify a send. Dates are instants, so "13:00+01:00" and "12:00" are equal.
- Among several records for the same send, the greatest (version, sent, email, subject) is effective. This order ignores the
  time of arrival, so every order of arrival, with any repeats, yields the same state. Without a version, a greater count
  corrects a smaller count. A correction downwards needs a higher version.
- A send of 0 mails is withdrawn: the state keeps the send, but the send takes no slot. To move a send to a new date, withdraw
  the send (old date, `sent` 0, a higher version) and send the new date.
- The wide table has slots for the first two sends in order of *date*, and the sum of all later sends. The one-to-many table has
  all sends.
- A campaign has the email and the subject of its latest send.

Outputs of a record with a change: the effective send, and the campaign's totals. Dead letters: fields outside the schema, an
invalid date, too long text, and the 1,001st send of a campaign.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from onefold import Event, Outputs, Rejected, Topology

# More mails than people. The sum of SENDS_MAX sends stays far inside 64 bits.
SENT_MAX = 10**12
# Enough for a mail address of at most 320 characters, and for every displayed subject.
TEXT_MAX = 500
# The state of a campaign is a single changelog record of at most 8 MB, which fits 1000 sends with the longest texts.
SENDS_MAX = 1000
# The unambiguous forms. `fromisoformat` alone would also accept week dates and dates without a time.
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)


@dataclass(slots=True)
class Send:
    """The effective values of a send."""

    version: int
    sent: int
    email: str
    subject: str


@dataclass(slots=True)
class Campaign:
    """All sends of a campaign by date, and the number of changes. In the canonical date form, text order is time order."""

    sends: dict[str, Send]
    changes: int


def handle(campaign: Campaign | None, event: Event) -> tuple[Campaign | None, Outputs]:
    """Store the greater of two records of the same send. A record that is not greater changes nothing."""
    value = event.value
    date = _admit(value)
    send = Send(value.version, value.sent, value.email, value.subject)
    if campaign is None:
        campaign = Campaign({}, 0)
    held = campaign.sends.get(date)
    if held is not None and _rank(send) <= _rank(held):
        return campaign, ()
    if held is None and len(campaign.sends) >= SENDS_MAX:
        raise Rejected(f"campaign {value.id} has {SENDS_MAX} sends already; one more does not fit")
    changed = replace(campaign, sends={**campaign.sends, date: send}, changes=campaign.changes + 1)
    return changed, (_accepted(value.id, date, send), _totals(value.id, changed))


def _rank(send: Send) -> tuple[int, int, str, str]:
    return send.version, send.sent, send.email, send.subject


def _admit(value: Any) -> str:
    """The send's date in canonical form. Raises `Rejected` for an invalid send."""
    if not 0 <= value.sent <= SENT_MAX:
        raise Rejected(f"sent is {value.sent}; it must be 0 to {SENT_MAX}")
    if value.version < 0:
        raise Rejected(f"version is {value.version}; it must not be negative")
    for name in ("email", "subject"):
        if len(getattr(value, name)) > TEXT_MAX:
            raise Rejected(f"{name} has more than {TEXT_MAX} characters")
    return canonical(value.date)


def canonical(date: str) -> str:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC, from an ISO 8601 date and time. A time without an offset is in UTC.

    Raises:
        Rejected: The text has a different form, or the date does not exist.
    """
    try:
        if not _DATE.fullmatch(date):
            raise ValueError
        instant = datetime.fromisoformat(date)
        if instant.tzinfo is not None:
            instant = instant.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise Rejected(f"date is {date[:40]!r}; it must be like '2021-12-01 12:00:00'") from None
    return instant.isoformat(sep=" ")


def _accepted(campaign_id: int, date: str, send: Send) -> tuple[str, dict[str, Any]]:
    fields = {"sent": send.sent, "email": send.email, "subject": send.subject, "version": send.version}
    return "campaigns.accepted", {"id": campaign_id, "date": date, **fields}


def _totals(campaign_id: int, campaign: Campaign) -> tuple[str, dict[str, Any]]:
    counting = sorted(date for date, send in campaign.sends.items() if send.sent)
    latest = campaign.sends[max(counting or campaign.sends)]
    first, second = [*counting[:2], None, None][:2]
    sent = [campaign.sends[date].sent for date in counting]
    fields = {
        "id": campaign_id,
        "email": latest.email,
        "subject": latest.subject,
        "date_1": first,
        "sent_1": sent[0] if first else None,
        "date_2": second,
        "sent_2": sent[1] if second else None,
        "sent_rest": sum(sent[2:]) if len(sent) > 2 else None,
        "sends": len(counting),
        "changes": campaign.changes,
    }
    return "campaigns.totals", fields


TOPOLOGY = Topology(
    name="campaigns",
    inputs=("campaigns.sends",),
    key=lambda send: send.id,
    state=Campaign,
    handle=handle,
    outputs={"campaigns.accepted": ("id", "date"), "campaigns.totals": ("id",)},
)
