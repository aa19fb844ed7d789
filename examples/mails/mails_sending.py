"""What the worker does with a letter: it hands it to the mail server that MAIL_SERVER names, as host:port."""

import os
import smtplib
from email.message import EmailMessage
from urllib.parse import quote

from onefold.effects import Context, Job, OnceEach, Refuse


class Letters(OnceEach):
    """One mail a job. A mail server has no idempotency key: the same mail may go out twice, with the same Message-ID, when a
    worker dies after it was taken and before that is written down.
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
    """Made when the worker starts."""
    return Letters(os.environ.get("MAIL_SERVER", "localhost:25"))
