"""Files of others are as their makers published them."""

import hashlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted(ROOT.glob("dashboard/**/SHA256SUMS")) + sorted(ROOT.glob("tests/**/SHA256SUMS"))


@pytest.mark.parametrize("checksums", LISTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_vendored_file_is_listed_with_its_checksum(checksums: Path) -> None:
    """Nothing is changed, nothing is there besides, and each comes with its licence."""
    lines = [line.split() for line in checksums.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    listed = {name: digest for digest, name in lines}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in checksums.parent.iterdir()
        if path != checksums
    }

    assert listed == found
    assert any(name.endswith(".LICENSE") for name in listed)
