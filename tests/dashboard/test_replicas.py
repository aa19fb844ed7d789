"""The replicas of a hot-hot pipeline on the live page."""

import re
import urllib.request
from collections.abc import Callable

import pytest

from onefold.operate.replicas import SILENT_S
from onefold.processor.core.topology import Topology
from tests.support.decisions import note, proposal, writer
from tests.support.floor import Floor
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

HOSTILE = "<b onclick=alert(1)>2</b>&amp;"


@pytest.fixture
def log(fresh_domain: Callable[..., Topology], client: dict[str, str]) -> Callable[..., None]:
    """Appends to the decision log of runner: one replica that is well, and one that was killed."""
    append = writer(fresh_domain("runner", 1), client)
    append(*map(proposal, range(4, 1211)))
    tell(append)
    return append


def tell(append: Callable[..., None]) -> None:
    """What the two tell of themselves."""
    append(note(HOSTILE, 4, publishes=True), ago_s=SILENT_S + 2)
    append(note("1", 1211, publishes=True))


def panel(site: Site) -> str:
    """The section of runner, "" when there is none."""
    sections = re.findall(r'<section class="replicas".*?</section>', site.get("/")[1], re.DOTALL)
    return next((section for section in sections if ">Replicas of runner<" in section), "")


def cells(row: str) -> list[str]:
    """What is to be read in a row."""
    found = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]*>", " ", cell).split()) for cell in found]


def test_each_replica_has_its_row(site: Site, floor: Floor, log: Callable[..., None]) -> None:
    """Kafka is asked while somebody looks, and not before."""
    assert panel(site) == ""

    def heard() -> str:
        """The section, once it is of a moment in which the one replica was not silent: the machine may be slow."""
        log(note("1", 1211, publishes=True))
        section = panel(site)
        return section if "healthy" in section else ""

    with urllib.request.urlopen(site.url + "/live", timeout=30):
        section = eventually(heard, SOON_S, "a panel with a replica that is well")
    well, silent = re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    assert cells(well)[:5] == ["1", "1", "1,211", "0", "1"]
    assert cells(well)[5].startswith("healthy heard ")
    assert cells(silent)[:5] == ["&lt;b onclick=alert(1)&gt;2&lt;/b&gt;&amp;amp;", "1", "4", "1,207", "0"]
    assert cells(silent)[5].startswith("unresponsive heard ")
    assert re.search(r"\d+ decisions a second, 0 versions to publish", section)


def test_a_pipeline_without_replicas_has_no_panel(
    site: Site, floor: Floor, fresh_domain: Callable[..., Topology]
) -> None:
    fresh_domain("runner")
    with urllib.request.urlopen(site.url + "/live", timeout=30):
        eventually(lambda: "runner</a></th>" in site.get("/")[1], SOON_S, "Kafka has answered")
        assert panel(site) == ""


def test_in_a_browser_it_is_readable_for_everybody(page: LivePage, floor: Floor, log: Callable[..., None]) -> None:
    """axe-core, all its rules, light and dark; no sideways scrolling on a phone; a name is only text."""
    for scheme, width in READERS:
        page.emulate(width=width, prefers_color_scheme=scheme)
        tell(log)  # again: who has told nothing for half a minute is not shown any more
        page.open()
        page.soon("#live", "Replicas of runner")  # others may have left logs of other pipelines
        assert HOSTILE in page.text("#live")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []
