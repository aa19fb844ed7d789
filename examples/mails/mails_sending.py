"""The effect of a letter: send a mail by the server that MAIL_SERVER names, as host:port."""

import os
import smtplib
from email.message import EmailMessage
from urllib.parse import quote

from onefold.effects import Context, Job, OnceEach, Refuse


class Letters(OnceEach):
    """One mail for each job.

    A mail server has no idempotency key. If a worker crashes between the mail and the note, the next worker sends the mail
    again, with the same Message-ID.
    """

    def __init__(self, server: str) -> None:
        self._server = server

    def do(self, job: Job) -> str:
        """Send it; gives its Message-ID."""
        if "@" not in job.value["address"]:
            raise Refuse(f"{job.value['address']!r} is no address")
        letter = EmailMessage()
        letter["Message-ID"] = f"<{quote(self.key(job), safe='')}@shop.example>"
        letter["From"], letter["To"] = "orders@shop.example", job.value["address"]
        letter["Subject"] = f"Your order {job.log_id}"
        letter.set_content(f"Thank you. That makes {job.value['cents'] / 100:.2f}.\n")
        host, _, port = self._server.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=10) as server:
            server.send_message(letter)
        return str(letter["Message-ID"])


def letters(context: Context) -> Letters:
    """Create the effect when the worker starts."""
    return Letters(os.environ.get("MAIL_SERVER", "localhost:25"))
