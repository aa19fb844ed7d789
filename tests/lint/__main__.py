"""`onefold lint`: every check of the code and the documents that needs no test. One line each, with its seconds."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.lint import code, documents, pages
from tests.lint.source import Source
from tests.support.rooms import ROOT

Check = Callable[[], str]  # what is wrong, "" if nothing is


def tool(*arguments: str) -> Check:
    """A program of this environment, started in the checkout."""

    def check() -> str:
        ran = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, encoding="utf-8", stdin=subprocess.DEVNULL
        )
        return (ran.stdout + ran.stderr).strip() if ran.returncode else ""

    return check


def site() -> str:
    """The pages as a site: each link leads somewhere, also to a heading, and a reader gets to every page."""
    with TemporaryDirectory() as folder:
        made = tool("-m", "sphinx", "-q", "-W", "--keep-going", "-d", f"{folder}/doctrees", "docs", f"{folder}/site")()
        if not made and not (Path(folder) / "site" / "index.html").is_file():
            return "sphinx made no index.html"
        return made


def rules() -> str:
    """The rules of this project, in this process."""
    source = Source()
    return "\n".join(
        f"{rule.__name__}: {complaint}"
        for rule in (*code.RULES, *documents.RULES, *pages.RULES)
        for complaint in rule(source)
    )


#: Arguments of Python for import-linter, which has no `python -m`.
IMPORTS = ("-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-logo", "--no-cache")
CHECKS: dict[str, Check] = {
    # The longest ones first: they share the cores with those that follow.
    "types": tool("-m", "mypy", "--no-error-summary", "-p", "onefold", "-p", "tests"),
    "site": site,
    "rules": rules,
    "imports": tool(*IMPORTS),
    "packages": tool("-m", "deptry", "."),
    "style": tool("-m", "ruff", "check", "."),
    "format": tool("-m", "ruff", "format", "--check", "."),
}


def main(names: Iterable[str]) -> int:
    """Runs the checks with these names, or all; the number of those that found something."""
    wanted = list(names) or list(CHECKS)
    if unknown := set(wanted) - CHECKS.keys():
        sys.stderr.write(f"error: there is no check {', '.join(sorted(unknown))}\nThere are: {', '.join(CHECKS)}\n")
        return 2

    def timed(name: str) -> tuple[str, float]:
        began = time.monotonic()
        return CHECKS[name](), time.monotonic() - began

    failed = 0
    with ThreadPoolExecutor() as pool:
        for name, (found, took_s) in zip(wanted, pool.map(timed, wanted), strict=True):
            failed += bool(found)
            sys.stdout.write(f"{'failed' if found else 'passed'}  {name} ({took_s:.1f} s)\n")
            if found:
                sys.stdout.write(f"{found}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
