"""One fixture module a resource; this list is all that pytest needs to know."""

import signal

# A shell that starts something in the background has it ignore Ctrl-C, and its children too: those that are to be stopped
# by one in a test could not be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "tests.fix_browser",
    "tests.fix_docker",
    "tests.fix_infrastructure",
    "tests.fix_ledger",
    "tests.fix_proxy",
    "tests.fix_sink",
]
