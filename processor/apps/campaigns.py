"""A/B campaigns: how many mails each campaign sent, right under every replay, duplicate and reordering.

A campaign is mailed in several sends: 100 to try a subject, an hour later 1000 with the subject that won. An upsert that
adds what arrives to what is stored says 2100 as soon as one acknowledgement is lost. Here every send is kept as it came,
and the total is computed from the sends.

The rule:

- A send is identified by its campaign and its date (the instant, so "13:00+01:00" and "12:00" are one).
- Of several records for one send the one with the greatest (version, sent, email, subject) holds. That order does not
  ask when a record arrived, so any order of arrival, with any repeats, ends in the same state. Without a version a
  greater count corrects a smaller one; to correct downwards, send a higher version.
- A send of 0 mails is withdrawn: it is kept and holds no slot. So a send is moved to another date by withdrawing it
  (its old date, `sent` 0, a higher version) and sending the new date.
- The wide table has slots for the first two sends in order of *date*. The third and later ones are never lost: their
  sum stands beside the slots, and all sends stand in the one-to-many table.
- A campaign's email and subject are those of its latest send.

Outputs of a record that changed something: the send as it now stands, and the campaign's totals. Dead letters: fields
that break the contract, no date, text too long, and the 1,001st send of a campaign.
"""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from onefold import Event, Outputs, Rejected, Topology

# More mails than people; the sum of SENDS_MAX of them stays far inside 64 bits.
SENT_MAX = 10**12
# A mail address has at most 320 characters and a subject that is shown far fewer.
TEXT_MAX = 500
# The state of a campaign is one changelog record: with the longest texts, every character escaped, this many sends take
# 6 MB of the 8 MB that such a record may have.
SENDS_MAX = 1000
# The forms that everybody reads alike; `fromisoformat` alone would also take week dates and leave out the time.
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
)


@dataclass(slots=True)
class Send:
    """What holds for one date; `date` in canonical form, so that text order is the order of time."""

    version: int
    sent: int
    email: str
    subject: str


@dataclass(slots=True)
class Campaign:
    """All sends of a campaign by date, and how often any of them changed."""

    sends: dict[str, Send]
    changes: int


def handle(campaign: Campaign | None, event: Event) -> tuple[Campaign | None, Outputs]:
    """Keep the greater of two records of one send; what is kept already changes nothing."""
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
    """The send's date in canonical form, or why the send cannot be taken."""
    if not 0 <= value.sent <= SENT_MAX:
        raise Rejected(f"sent is {value.sent}; it must be 0 to {SENT_MAX}")
    if value.version < 0:
        raise Rejected(f"version is {value.version}; it must not be negative")
    for name in ("email", "subject"):
        if len(getattr(value, name)) > TEXT_MAX:
            raise Rejected(f"{name} has more than {TEXT_MAX} characters")
    return canonical(value.date)


def canonical(date: str) -> str:
    """`YYYY-MM-DD HH:MM:SS[.ffffff]` in UTC, from ISO 8601 date and time; without an offset it is UTC already.

    Raises:
        Rejected: the text is of another form, or there is no such date.
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
