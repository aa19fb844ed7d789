"""The list of what is in an image, for scanners of vulnerabilities."""

import json
import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from onefold.stack import jars
from tests.support.rooms import ROOT

pytestmark = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian: the images are")
SCRIPT = ROOT / "images" / "python" / "sbom.py"


def listed(*arguments: str) -> dict[str, dict[str, object]]:
    made = subprocess.run(
        [sys.executable, SCRIPT, *arguments], check=True, capture_output=True, encoding="utf-8", timeout=60
    )
    document = json.loads(made.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    found = {one["purl"]: one for one in document["components"]}
    assert len(found) == len(document["components"])
    assert all(one["type"] == "library" and one["name"] and one["version"] for one in found.values())
    return found


def test_each_package_and_each_jar_of_the_group_is_listed_with_its_hash() -> None:
    found = listed("spark")
    version = metadata.version("confluent-kafka")
    assert f"pkg:pypi/confluent-kafka@{version}" in found
    assert any(purl.startswith("pkg:deb/debian/libc6@") for purl in found)
    locked = [one for one in jars.read_lock(jars.LOCK_FILE.read_text("utf-8")) if one.group == "spark"]
    for jar in locked:
        one = found[f"pkg:maven/{jar.organisation}/{jar.name}@{jar.version}"]
        assert one["hashes"] == [{"alg": "SHA-256", "content": jar.sha256}]
    assert sum(purl.startswith("pkg:maven/") for purl in found) == len(locked)


def test_an_image_without_jars_lists_none() -> None:
    assert not any(purl.startswith("pkg:maven/") for purl in listed())


def test_the_images_of_services_have_the_list_and_no_root() -> None:
    text = (ROOT / "images" / "Dockerfile").read_text(encoding="utf-8")
    for name, group in (("packages AS processor", ""), ("spark AS sink", " spark")):
        stage = text.partition(f"FROM {name}\n")[2].partition("\nFROM ")[0]
        assert f"python3 /build/sbom.py{group} > /opt/onefold/sbom.cdx.json" in stage
        assert "USER onefold" in stage
