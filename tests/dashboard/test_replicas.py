"""The replicas of a hot-hot pipeline on the live page."""

import re
import urllib.request
from collections.abc import Callable

import pytest

from onefold.processor.core.topology import Topology
from tests.support.decisions import proposal, published, writer
from tests.support.floor import Floor
from tests.support.site import READERS, SOON_S, LivePage, Site
from tests.support.waiting import eventually

HOSTILE = "<b onclick=alert(1)>2</b>&amp;"
KILLED_S = 7.0  # ago


@pytest.fixture
def log(fresh_domain: Callable[..., Topology], client: dict[str, str]) -> Callable[..., None]:
    """The decision log of runner: one replica has decided most of it, and published all; another one was killed."""
    append = writer(fresh_domain("runner", 1), client)
    append(proposal(3, name=HOSTILE), published(HOSTILE, 4), ago_s=KILLED_S)
    append(*(proposal(version, name="1") for version in range(4, 1211)), published("1", 1211))
    return append


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
    with urllib.request.urlopen(site.url + "/live", timeout=30):
        section = eventually(lambda: panel(site), SOON_S, "a panel with two replicas")
    well, killed = re.findall(r"<tr.*?</tr>", section, re.DOTALL)[1:]
    assert cells(well)[:3] == ["1", "1,207 of 1,208", "1"]
    assert cells(killed)[:3] == ["&lt;b onclick=alert(1)&gt;2&lt;/b&gt;&amp;amp;", "1 of 1,208", "0"]
    assert re.fullmatch(r"\d.* ago", cells(killed)[3])
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
        log(published(HOSTILE, 4), published("1", 1211))  # again: only recent records are read
        page.open()
        page.soon("#live", "Replicas of runner")  # others may have left logs of other pipelines
        assert HOSTILE in page.text("#live")
        assert page.ask("document.documentElement.scrollWidth") <= width
        assert page.barriers() == []
