"""The sources of the site: a page for each pass, from its class and its tests; and no link that leads nowhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from ortopt.options import Numerics
from tools.site import pages
from tools.site.__main__ import publish, write_sources
from tools.site.examples import reasons, smallest, text_of
from tools.site.navigation import MENU, navigation
from tools.site.pass_pages import NUMBERS

pytestmark = pytest.mark.xdist_group("site")  # what they share is costly

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_sources(folder, ["matmul_add_fusion", "gelu_approximation"])
    return folder


def test_a_pass_has_a_page_from_its_class_its_test_and_its_code(sources: Path) -> None:
    page = (sources / "pages/passes/matmul_add_fusion.md").read_text(encoding="utf-8")
    assert "`Add(MatMul(a, b), c)` → `Gemm(a, b, c)`" in page
    assert "reordered: the same in real arithmetic" in page
    assert "t = MatMul (a, b)" in page
    assert "y = Gemm (a, b, c)" in page
    assert "- Gemm broadcasts C one way only" in page
    assert "[constant\\_folding]" in page or "[constant_folding](constant_folding.md)" in page
    assert page.count("<svg") == 2
    assert 'class="new"' in page


def test_a_pass_that_is_off_says_how_to_turn_it_on(sources: Path) -> None:
    page = (sources / "pages/passes/gelu_approximation.md").read_text(encoding="utf-8")
    assert "`--enable gelu_approximation` turns it on" in page


def test_every_pass_and_every_written_page_is_in_the_menu(sources: Path) -> None:
    menu = tomllib.loads((sources / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    shown = re.findall(r"'([\w./]+\.md)'", str(menu))
    assert len(shown) == len(set(shown))
    assert set(shown) == {path.relative_to(sources / "pages").as_posix() for path in (sources / "pages").rglob("*.md")}
    assert {page for section in MENU.values() for page in section.values()} <= set(pages.pages())


def test_benchmarks_and_forms_that_lose_are_for_developers() -> None:
    others = {page for name, pages_ in MENU.items() if name != "Developers" for page in pages_.values()}
    assert {"benchmarks.md", "losers.md", "architecture.md", "contributing.md"} <= set(MENU["Developers"].values())
    assert not {"benchmarks.md", "losers.md"} & others


def test_a_page_that_the_menu_does_not_name_is_a_guide() -> None:
    menu = tomllib.loads(f"nav = {navigation([], {'more.md': '# More `code`'})}")["nav"]
    (guides,) = (section["Guides"] for section in menu if "Guides" in section)
    assert guides[-1] == {"More code": "more.md"}


def test_every_kind_of_numerics_has_its_words() -> None:
    assert {kind.value for kind in Numerics} <= set(NUMBERS)


def test_no_link_leads_nowhere(sources: Path) -> None:
    for path in (sources / "pages").rglob("*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)", text):
            if not re.match(r"[a-z]+:", target):
                assert (path.parent / target).resolve().is_file(), f"{path.name}: {target}"


def test_long_constants_are_shortened() -> None:
    example = smallest("conv1d_conversion")
    assert example is not None
    assert "3072 in all" in text_of(example.before)


def test_reasons_come_from_the_code_and_from_the_tests() -> None:
    told = reasons("matmul_add_fusion")
    assert "only float Gemm kernels are fast" in told
    assert "MatMul's result is used elsewhere" in told


def test_versions_stand_side_by_side(tmp_path: Path) -> None:
    made, site = tmp_path / "html", tmp_path / "site"
    made.mkdir()
    (made / "index.html").write_text("page", encoding="utf-8")
    for version in ("0.9.0", "0.10.0"):
        publish(made, site, version)
    versions = json.loads((site / "versions.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in versions] == ["0.10.0", "0.9.0"]
    assert [entry["aliases"] for entry in versions] == [["latest"], []]
    assert "0.10.0/index.html" in (site / "index.html").read_text(encoding="utf-8")
