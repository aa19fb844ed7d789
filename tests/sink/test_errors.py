"""What is said of an error in one sentence."""

import pytest

from onefold.spark_sink.errors import sentence

# As Spark has it of a task whose Python has raised something while it handled something else.
OF_A_TASK = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/a/worker.py", line 12, in copy
    copy.write(lines)
psycopg.OperationalError: consuming input failed: it went away
server closed the connection unexpectedly

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/a/worker.py", line 2044, in main
    process()
psycopg.errors.IdleInTransactionSessionTimeout: terminating connection due to idle-in-transaction timeout

"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "ValueError"),
        ("  it is wrong \nat line 3", "it is wrong"),
        (OF_A_TASK, OF_A_TASK.strip().splitlines()[-1]),
        ("the task is lost\nTraceback (most recent call last):\n  File", "the task is lost"),
    ],
)
def test_an_error_is_said_in_one_sentence(text: str, said: str) -> None:
    assert sentence(ValueError(text)) == said
