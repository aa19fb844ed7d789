"""One fixture module a resource; this list is all that pytest needs to know."""

pytest_plugins = [
    "tests.fix_browser",
    "tests.fix_docker",
    "tests.fix_infrastructure",
    "tests.fix_proxy",
    "tests.fix_sink",
]
