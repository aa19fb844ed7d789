"""Print the content of an image as a CycloneDX document in JSON: `sbom.py [<group of jars>]`.

The document lists Debian's packages, all Python packages including the interpreter's own, and the jars of `jars.lock`.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]


def _component(name: str, version: str, purl: str, sha256: str = "") -> Component:
    hashes = {"hashes": [{"alg": "SHA-256", "content": sha256}]} if sha256 else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **hashes}


def _debian() -> Iterator[Component]:
    listed = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package} ${Version} ${Architecture}\n"],
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    for line in listed.stdout.splitlines():
        status, name, version, architecture = line.split()
        if status == "installed":
            where = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}"
            yield _component(name, version, where)


def _python() -> Iterator[Component]:
    for one in metadata.distributions():
        name = one.metadata["Name"].lower().replace("_", "-")
        yield _component(name, one.version, f"pkg:pypi/{name}@{quote(one.version, safe='')}")


def _jars(group: str) -> Iterator[Component]:
    from onefold.stack import jars

    for jar in jars.read_lock(jars.LOCK_FILE.read_text(encoding="utf-8")):
        if jar.group == group:
            where = f"pkg:maven/{jar.organisation}/{jar.name}@{jar.version}"
            yield _component(f"{jar.organisation}:{jar.name}", jar.version, where, jar.sha256)


def document(group: str = "") -> dict[str, Any]:
    """The document. `group` is the group of jars in the image; "" for an image without jars."""
    found = [*_debian(), *_python(), *(_jars(group) if group else ())]
    components = {one["bom-ref"]: one for one in found}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [components[name] for name in sorted(components)],
    }


if __name__ == "__main__":
    json.dump(document(*sys.argv[1:]), sys.stdout, indent=1)
