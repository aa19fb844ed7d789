"""One fixture module a resource; this list is all that pytest needs to know."""

import os
import signal
import sys

# A broker or sink of a test lives for seconds or minutes. The second compiler of its JVM takes as much processor time as all the
# rest, and never gives it back (docs/decisions/jvm-settings.md).
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# Stacks of tests run side by side, and beside a developer's.
os.environ |= {f"ONEFOLD_{name}_PORT": "0" for name in ("KAFKA", "POSTGRES", "DASHBOARD")}

# pytest rewrites the assertions of each test file. Without a cache each process of each run does so again.
sys.dont_write_bytecode = False

# A shell that starts something in the background has it ignore Ctrl-C, and its children too: those that are to be stopped
# by one in a test could not be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.support.browser",
    "tests.support.docker",
    "tests.support.forks",
    "tests.support.infrastructure",
    "tests.support.proxy",
    "tests.support.landing",
    "tests.support.logging_left",
    "tests.support.needs",
    "tests.support.s3",
    "tests.support.objects",  # after what it imports
    "tests.support.promises",
    "tests.support.sink",
    "tests.support.sink_children",
    "tests.support.turns",
]
