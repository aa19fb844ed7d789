"""The pages as a site: every link leads somewhere, also to a heading, and a reader can get to every page."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rooms import ROOT


def built(docs: Path, site: Path) -> "subprocess.CompletedProcess[str]":
    """`python -m sphinx -W`: a warning is an error."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(site / "doctrees"), str(docs), str(site)],
        capture_output=True, encoding="utf-8", timeout=120, cwd=docs.parent,
    )  # fmt: skip


def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    ran = built(ROOT / "docs", tmp_path / "site")
    assert ran.returncode == 0, ran.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").glob("**/*.md")}
    pages = {page for page in pages if page.parts[0] != "examples"}
    made = {path.relative_to(tmp_path / "site").with_suffix("") for path in (tmp_path / "site").glob("**/*.html")}
    assert pages <= made
    for reader in ("walkthrough", "tutorial", "operating", "design"):
        assert re.search(
            rf'<p><strong>[^<]+</strong> <a [^>]*href="{reader}.html"',
            (tmp_path / "site/index.html").read_text(encoding="utf-8"),
        )


@pytest.mark.parametrize("wrong", ["[gone](gone.md)", "[gone](other.md#gone)"])
def test_a_link_that_leads_nowhere_is_found(wrong: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", docs)
    (docs / "index.md").write_text(
        f"# Index\n\n[other](other.md#there)\n{wrong}\n\n```{{toctree}}\nother\n```\n", encoding="utf-8"
    )
    (docs / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    ran = built(docs, tmp_path / "site")
    assert ran.returncode == 1
    assert "WARNING" in ran.stderr
    assert ran.stderr.count("gone") >= 1
    assert "there" not in ran.stderr
