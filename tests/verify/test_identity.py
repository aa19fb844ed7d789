"""The identity of a checkpoint: all that a model is made of belongs to it, and what else a process loads does not."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from onefold import pipelines
from onefold.verify import checkpoints, imported
from onefold.verify.checkpoints import fingerprint
from onefold.verify.loading import workload

pytestmark = pytest.mark.promise("verify-reads-on")

WORKLOAD = """
import importlib
from typing import TYPE_CHECKING
from onefold.model import Table, model
import weights
from shop_rules.prices import price
from shop_rules import taxes
from shop_parts.one import PART
if TYPE_CHECKING:
    from shop_types import Parcel

PLUGIN = importlib.import_module("shop_plugin")
MAKER = importlib.import_module("shop_maker").Maker()

def apply(scan, tables):
    from shop_late import late
    tables["parcels.places"].put(scan)

WORKLOAD = model("parcels", apply, inputs=("parcels.scans",), key="parcel",
                 tables=(Table("parcels.places", topic="parcels.places", key=("parcel",)),))
"""
PROJECT = {
    "pyproject.toml": """
[tool.onefold]
packages = []
[tool.onefold.pipelines.parcels]
topology = "parcels:TOPOLOGY"
workload = "models.parcels_workload"
""",
    "avro/parcels.avsc": """{"type": "record", "name": "Parcel", "topics": ["parcels.scans", "parcels.places"],
        "fields": [{"name": "parcel", "type": "string"}]}""",
    "sql/none.sql": "-- none",
    "models/parcels_workload.py": WORKLOAD,
    "models/beside.py": "",
    "shop_rules/__init__.py": "",
    "shop_rules/prices.py": "from .rounding import HALF\nfrom . import tables\ndef price(): return HALF\n",
    "shop_rules/rounding.py": "HALF = 0.5\n",
    "shop_rules/tables.py": "",
    "shop_rules/taxes.py": "import shop_rates.swiss\n",
    "shop_rules/unused.py": "",
    "shop_rates/__init__.py": "RATE = 1\n",
    "shop_rates/swiss.py": "",
    "shop_parts/one.py": "PART = 1\n",
    "shop_types.py": "class Parcel: pass\n",
    "shop_plugin.py": "",
    "shop_maker.py": "class Maker: pass\n",
    "shop_late.py": "def late(): pass\n",
    "shop_other.py": "import shop_plugin, shop_rules.unused\n",
    "site-packages/weights/__init__.py": "",
    "site-packages/weights-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n"
    "Requires-Dist: scales>=1\nRequires-Dist: unused; extra == 'dev'\n",
    "site-packages/weights-1.0.dist-info/top_level.txt": "weights\n",
    "site-packages/scales-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: scales\nVersion: 2.0\n",
    "site-packages/unused-3.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: unused\nVersion: 3.0\n",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, content in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    monkeypatch.setenv(pipelines.PROJECT_VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def identity() -> str:
    return fingerprint(workload("parcels"))


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("models/parcels_workload.py", id="the model"),
        pytest.param("models/beside.py", id="a file beside it"),
        pytest.param("avro/parcels.avsc", id="a schema"),
        pytest.param("shop_rules/prices.py", id="a helper in another folder"),
        pytest.param("shop_rules/rounding.py", id="what a helper imports by a relative name"),
        pytest.param("shop_rules/tables.py", id="a module that a helper takes from its own package"),
        pytest.param("shop_rules/taxes.py", id="a module that is imported as a name of its package"),
        pytest.param("shop_rules/__init__.py", id="the package of a helper"),
        pytest.param("shop_rates/__init__.py", id="the package of a helper's import"),
        pytest.param("shop_rates/swiss.py", id="what a helper imports"),
        pytest.param("shop_parts/one.py", id="a module of a package without a file"),
        pytest.param("shop_late.py", id="a module that is imported when it is needed"),
        pytest.param("shop_plugin.py", id="a module that is imported by a computed name"),
        pytest.param("shop_maker.py", id="the class of an object of a module imported by a computed name"),
    ],
)
def test_a_change_in_what_the_model_is_made_of_is_another_identity(project: Path, file: str) -> None:
    before = identity()
    path = project / file
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert identity() != before


@pytest.mark.parametrize("file", ["shop_rules/unused.py", "shop_other.py", "sql/none.sql"])
def test_a_change_elsewhere_is_none(project: Path, file: str) -> None:
    before = identity()
    (project / file).write_text("changed = 1\n", encoding="utf-8")
    assert identity() == before


@pytest.mark.parametrize(("library", "version", "is_another"), [
    ("weights", "1.0", True), ("scales", "2.0", True), ("unused", "3.0", False),
])  # fmt: skip
def test_the_libraries_of_a_model_count_by_their_versions(
    project: Path, library: str, version: str, is_another: bool
) -> None:
    """Those that it imports, and those that they need; what only their developers need does not count."""
    before = identity()
    folder = project / "site-packages" / f"{library}-{version}.dist-info"
    content = (folder / "METADATA").read_text(encoding="utf-8").replace(f"Version: {version}\n", "Version: 7.1\n")
    shutil.rmtree(folder)
    folder = folder.with_name(f"{library}-7.1.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(content, encoding="utf-8")
    (folder / "top_level.txt").write_text(f"{library}\n", encoding="utf-8")
    assert (identity() != before) is is_another


@pytest.mark.parametrize("library", ["fastavro", "confluent-kafka"])
def test_the_libraries_that_the_verifier_decodes_with_count_by_their_versions(
    project: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, version = identity(), metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99" if name == library else version(name))
    assert identity() != before


def test_the_verifier_decodes_with_no_other_library() -> None:
    """Of PostgreSQL and of objects it keeps nothing in a checkpoint."""
    package = Path(checkpoints.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in package.rglob("*.py")]
    names = {name.partition(".")[0] for tree in trees for name in imported.imports(tree, "onefold.verify")}
    keeps_nothing = {"psycopg", "boto3", "botocore"}
    used = names - sys.stdlib_module_names - {"onefold"} - keeps_nothing
    assert used == {library.replace("-", "_") for library in checkpoints.LIBRARIES}


def test_a_change_in_onefold_outside_of_the_verifier_counts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity()
    shutil.copytree(checkpoints._ONEFOLD, tmp_path / "onefold", ignore=lambda folder, names: [
        name for name in names if not name.endswith(".py")
    ])  # fmt: skip
    monkeypatch.setattr(checkpoints, "_ONEFOLD", tmp_path / "onefold")
    assert identity() == before
    with (tmp_path / "onefold" / "kafka_offsets.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    assert identity() != before


RUNS = [
    "",
    "import shop_other, shop_rates.swiss, shop_rules.prices",
    "import weights, shop_late, shop_types; import onefold.operate.check",
    "import onefold.verify.audit.auditor; import shop_rules.taxes",
]


def test_every_process_has_one_identity(project: Path) -> None:
    """Whatever it has loaded, in whatever order, and wherever it runs."""
    found = set()
    for number, first in enumerate(RUNS):
        code = f"{first}\nfrom onefold.verify.checkpoints import fingerprint\n"
        code += "from onefold.verify.loading import workload\nprint(fingerprint(workload('parcels')))\n"
        paths = [str(project), str(project / "site-packages")]
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=[project, project.parent][number % 2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": str(number)},
            capture_output=True, encoding="utf-8", check=True,
        )  # fmt: skip
        found.add(ran.stdout)
    assert len(found) == 1
