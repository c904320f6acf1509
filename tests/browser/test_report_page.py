"""The page in a real browser: what is seen, clicked, typed and printed, and that hostile names stay text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import onnx_ir as ir
import pytest

import ortopt
from benchmarks.chromium import Chromium
from ortopt.regression import formats as check_page
from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting.model_diff import compare
from ortopt.reporting.page.pages import diff_page, document, index_page, page_of, run_page
from ortopt.reporting.report import as_dict
from ortopt.testing import parse

pytestmark = pytest.mark.xdist_group("browser")  # what they share is costly

Opened: TypeAlias = Callable[[str], float]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--\u2028\u2029&\"'"
LAYERS = 8
WEIGHT = "{" + ", ".join("1" if row == column else "0" for row in range(4) for column in range(4)) + "}"


def network(layers: int = LAYERS) -> ir.Model:
    """Layers that are alike: a MatMul with a bias, and an activation, behind an Identity."""
    weights = ", ".join(f"float[4,4] w{at} = {WEIGHT}, float[4] b{at} = {{1, 2, 3, 4}}" for at in range(layers))
    body = " ".join(
        f"i{at} = Identity (x{at}) m{at} = MatMul (i{at}, w{at}) a{at} = Add (m{at}, b{at}) x{at + 1} = Tanh (a{at})"
        for at in range(layers)
    )
    model = parse(f"main (float[N,4] x0) => (float[N,4] x{layers}) <{weights}> {{ {body} }}")
    for node in model.graph:
        result = node.outputs[0].name or ""
        layer = int(result[1:]) - (1 if result[0] == "x" else 0)
        node.name = f"/net/layers.{layer}/{node.op_type}"
    return model


def rename(model: ir.Model, name: str) -> ir.Model:
    """Call everything in a model by a name, metadata too."""
    model.graph.name = name
    model.metadata_props[name] = name
    for at, node in enumerate(model.graph):
        node.name = f"/{name}/{at // 4}/{name}{at}"
        node.doc_string = name
        node.metadata_props[name] = name
        for value in node.outputs:
            value.name = f"{name}{value.name}"
    model.graph.inputs[0].name = name
    return model


@functools.cache
def page(*, hostile: bool = False, profile: bool = False) -> str:
    model = rename(network(), HOSTILE) if hostile else network()
    result = ortopt.optimize(model, observers=[ortopt.Lineage()], level=1)
    report = as_dict(result, source=HOSTILE if hostile else "net.onnx")
    if profile:
        rows = [
            {"op": "MatMul", "count": 8, "ms": 1.25, "share": 0.75},
            {"op": HOSTILE, "count": 1, "ms": 0.1, "share": 0.25},
        ]
        report["profile"] = {"original": rows, "result": rows[:1]}
    return run_page(result, report)


def texts(browser: Chromium, selector: str) -> list[str]:
    return browser.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def shown(browser: Chromium, pane: int = 0) -> list[str]:
    """The first lines of the boxes of a drawing."""
    return browser.run(
        f"[...document.querySelectorAll('figure')[{pane}].querySelectorAll('.item')]"
        ".map((e) => e.querySelector('text').textContent)"
    )


def test_it_shows_all_that_was_done(browser: Chromium, opened: Opened) -> None:
    opened(page())
    assert texts(browser, "h1") == ["net.onnx"]
    sections = ["Summary", "Graph", "Timeline", "Rewrites by pass", "Verification", "What is left, and why"]
    assert texts(browser, "nav a") == texts(browser, "h2")
    assert [title for title in sections if title in texts(browser, "h2")] == texts(browser, "h2")
    assert sections[:5] == texts(browser, "h2")[:5]
    assert texts(browser, ".card strong")[0] == "32 → 16"
    assert "matmul_add_fusion 8 rewrites" in " ".join(texts(browser, "#rewrites summary"))
    assert texts(browser, "#verification tbody td")[:2] == ["x8", "agrees"]
    assert " Run on CPU. It took " in texts(browser, "#verification p")[0]
    assert browser.run("document.querySelectorAll('.timeline .bar').length") > 10


DEFAULTS = "ONNX Runtime's default optimizations"
AGREES = f"also run with {DEFAULTS}, and agrees"
THEIRS = f"{DEFAULTS} change the original, too: output 'y': 1.5 instead of 0.5"
KILLED = f"with {DEFAULTS}, the original runs, the result does not: it ended its process with SIGSEGV"


@functools.cache
def _result_and_report() -> tuple[ortopt.OptimizeResult, dict[str, Any]]:
    result = ortopt.optimize(network(2), observers=[ortopt.Lineage()], level=1)
    return result, as_dict(result, source="net.onnx")


def deployed_page(*, report: dict[str, Any] | None = None, **verification: Any) -> str:
    """The page of a run whose verification has said something else."""
    result, data = _result_and_report()
    return run_page(result, {**data, **(report or {}), "verification": {**data["verification"], **verification}})


@pytest.mark.parametrize(
    ("outcome", "badges", "says"),
    [
        ({}, {"good": [AGREES]}, ""),
        ({"not_as_deployed": THEIRS}, {"good": [AGREES], "unknown": ["warning"]}, THEIRS),
        (
            {"as_deployed": None, "not_as_deployed": THEIRS},
            {"unknown": [f"not compared with {DEFAULTS}", "warning"]},
            THEIRS,
        ),
        (
            {"as_deployed": False, "status": "differs", "reason": KILLED, "outputs": []},
            {"bad": [f"differs with {DEFAULTS}"]},
            "",
        ),
        ({"as_deployed": None}, {"": [f"not run with {DEFAULTS}"]}, ""),
        ({"as_deployed": None, "status": "differs", "reason": "output 'y': wrong"}, {}, ""),
        ({"as_deployed": None, "status": "impossible", "reason": "no kernel"}, {}, ""),
    ],
)
def test_it_says_whether_the_result_agrees_as_it_is_deployed(
    browser: Chromium, opened: Opened, outcome: dict[str, Any], badges: dict[str, list[str]], says: str
) -> None:
    opened(deployed_page(**outcome))
    found: dict[str, list[str]] = {}
    for text in browser.run(
        "[...document.querySelectorAll('.deployed .badge')].map((e) => [e.className, e.textContent])"
    ):
        found.setdefault(text[0].removeprefix("badge").strip(), []).append(text[1])
    assert found == badges
    assert says in " ".join(texts(browser, ".deployed"))


def test_it_says_why_rounded_copies_are_not_run_as_they_are_deployed(browser: Chromium, opened: Opened) -> None:
    opened(deployed_page(report={"half_precision": {"dtype": "BFLOAT16"}}, as_deployed=None))
    assert texts(browser, ".deployed")[0].endswith("It was compared as copies that compute in float32 and are rounded.")


def test_it_says_how_the_result_does_on_other_runtimes(browser: Chromium, opened: Opened) -> None:
    opened(deployed_page())
    assert texts(browser, ".elsewhere") == []
    rows = [
        ("OpenVINO 2025.3", True, ""),
        ("ONNX Runtime 1.20.1", False, HOSTILE),
        ("onnxruntime-web 1.22", None, "no"),
    ]
    opened(deployed_page(elsewhere=[{"runtime": name, "agrees": agrees, "reason": why} for name, agrees, why in rows]))
    first, second, third = texts(browser, ".elsewhere")
    assert first == "On OpenVINO 2025.3: also run there, and agrees"
    assert second.startswith("On ONNX Runtime 1.20.1: differs </script><script>alert(1)")
    assert third == "On onnxruntime-web 1.22: not compared no"
    classes = browser.run("[...document.querySelectorAll('.elsewhere .badge')].map((e) => e.className)")
    assert classes == ["badge good", "badge bad", "badge unknown"]


def test_it_says_what_the_result_needs_and_why_it_is_larger(browser: Chromium, opened: Opened) -> None:
    why = "7 nodes more: some_decomposition adds 9 (written out in simpler ops)"
    requires = {
        "onnxruntime": "1.23",
        "original": "1.12",
        "any_runtime": False,
        "because": ["opset 23"],
        "with_nothing": None,
        "ops": ["a::B"],
    }
    opened(deployed_page(report={"larger": [why], "requires": requires, "opset": {"before": 17, "after": 23}}))
    said = texts(browser, "#summary p")
    assert f"Larger: {why}" in said
    needs = "Needs: ONNX Runtime 1.23 or newer, for opset 23, raised from 17; it has ops of ONNX Runtime's own: a::B"
    assert needs in said


def test_it_says_what_has_become_of_inputs_and_outputs(browser: Chromium, opened: Opened) -> None:
    opened(deployed_page())
    assert "Inputs and outputs" not in texts(browser, "#summary h3")
    image = {"name": "pixels", "type": "FLOAT", "shape": ["N", 3, None]}
    rows = [
        {"kind": "input", "before": image, "after": image | {"type": "UINT8"}, "left": ["Transpose", "Cast"]},
        {"kind": "output", "before": {"name": HOSTILE, "type": None, "shape": None}, "after": None, "left": []},
    ]
    opened(deployed_page(report={"interface": rows}))
    assert "Inputs and outputs" in texts(browser, "#summary h3")
    said = " ".join(texts(browser, "#summary table"))
    assert "pixels: FLOAT [N, 3, ?]" in said
    assert "pixels: UINT8 [N, 3, ?]" in said
    assert "Transpose, Cast" in said
    assert f"{' '.join(HOSTILE.split())}: unknown […]" in " ".join(said.split())


def test_a_repair_names_the_pass_and_the_signal(browser: Chromium, opened: Opened) -> None:
    repair = {"pass": "gelu_fusion", "rewrite": 3, "reason": KILLED, "left_out": "pass"}
    opened(deployed_page(report={"repairs": [repair]}))
    assert texts(browser, "#verification li") == [f"gelu_fusion rewrite 3: {KILLED}; the pass was left out"]


def test_every_status_of_a_check_has_the_colour_of_what_it_is(browser: Chromium, opened: Opened) -> None:
    results = tuple(Result(status.name, status.name, "", status) for status in Status)
    opened(check_page.page(Check(results, {})))
    for selector, kind in (("td .badge", "badge"), ("#summary .card", "card")):
        classes = browser.run(f"[...document.querySelectorAll({selector!r})].map((e) => e.className)")
        colours = dict(zip(Status, (text.removeprefix(kind).strip() for text in classes), strict=True))
        assert {status for status, colour in colours.items() if colour == "bad"} == set(EXIT_CODES)
        assert {status for status, colour in colours.items() if not colour} == {Status.UNCHANGED, Status.SKIPPED}


def test_it_folds_and_unfolds_on_both_sides(browser: Chromium, opened: Opened) -> None:
    opened(page())
    assert 1 < len(shown(browser)) < 60
    fold(browser)
    assert sorted(shown(browser)) == sorted(shown(browser, 1)) == ["+ net", "x0", "x8"]
    browser.click(".item.group")
    assert sorted(text for text in shown(browser) if text.startswith("+")) == [f"+ layers.{at}" for at in range(LAYERS)]
    browser.click(".item.group")
    assert {"Identity", "MatMul", "Add", "Tanh"} <= set(shown(browser))
    assert {"Gemm", "Tanh", "+ layers.1"} <= set(shown(browser, 1))
    assert not {"Identity", "MatMul", "Add"} & set(shown(browser, 1))
    browser.click("[data-fold]")
    assert len(shown(browser)) == 3


def test_a_new_node_tells_which_rewrite_made_it_from_what_and_why(browser: Chromium, opened: Opened) -> None:
    opened(page())
    unfold(browser)
    browser.click("figure:last-of-type .item.added")
    panel = browser.run("document.querySelector('.panel').innerText")
    for text in ("new in the result", "Made by", "matmul_add_fusion", "rewrite", "MatMul", "Add"):
        assert text in panel
    assert browser.run("document.querySelectorAll('figure:first-of-type .item.related').length") >= 2


def test_an_old_node_tells_what_became_of_it(browser: Chromium, opened: Opened) -> None:
    opened(page())
    unfold(browser)
    browser.run("ortopt.explorer.select(1)")  # the first MatMul
    panel = browser.run("document.querySelector('.panel').innerText")
    for text in ("gone from the result", "Replaced by", "matmul_add_fusion", "Gemm", "float[N, 4]"):
        assert text in panel
    browser.click(".panel .future .node-link")
    assert "new in the result" in browser.run("document.querySelector('.panel').innerText")
    browser.press("Escape")
    assert browser.run("document.querySelector('.panel').hidden")


def fold(browser: Chromium) -> None:
    """Fold everything."""
    browser.run(
        "ortopt.explorer.open.clear(); ortopt.explorer.draw(); ortopt.explorer.panes.forEach((one) => one.fit())"
    )


def unfold(browser: Chromium) -> None:
    """Unfold the layers, and the first of them."""
    fold(browser)
    browser.click(".item.group")
    browser.click(".item.group")


def test_search_finds_nodes_and_unfolds_what_is_around_them(browser: Chromium, opened: Opened) -> None:
    opened(page())
    browser.press("/")
    browser.type("gemm layers.5")
    assert texts(browser, ".results p") == ["1 node"]
    browser.press("Enter", "\r")
    assert "layers.5" in browser.run("document.querySelector('.panel .name').textContent")
    assert "Gemm" in shown(browser, 1)
    assert browser.run("document.querySelectorAll('.item.selected').length") == 1
    browser.run("document.querySelector('.searching input').value = 'nosuch'")
    browser.run("ortopt.explorer.find()")
    assert texts(browser, ".results p") == ["no such node"]


def test_keys_walk_unfold_fold_and_zoom(browser: Chromium, opened: Opened) -> None:
    opened(page())
    fold(browser)
    browser.run("document.querySelector('svg.graph').focus()")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    assert texts(browser, "figure:first-of-type .item.focused text")[0] == "+ net"
    browser.press("Enter", "\r")
    assert "+ layers.3" in shown(browser)
    before = browser.run("document.querySelector('svg.graph').__zoom.k")
    browser.press("+", "+")
    assert browser.run("document.querySelector('svg.graph').__zoom.k") > before
    browser.press("0", "0")
    browser.press("ArrowDown")
    browser.press("ArrowDown")
    browser.press("Backspace")
    assert "+ layers.0 … layers.7" in shown(browser)


def test_sides_are_shown_beside_each_other_overlaid_and_alone(browser: Chromium, opened: Opened) -> None:
    opened(page())
    unfold(browser)
    browser.click("[data-control=both]")
    assert browser.run("document.querySelectorAll('figure').length") == 1
    assert {"Identity", "MatMul", "Gemm"} <= set(shown(browser))
    assert browser.run("document.querySelectorAll('.edge.removed').length") > 0
    browser.click("[data-control=after]")
    assert "MatMul" not in shown(browser)
    browser.click("[data-control=before]")
    assert "Gemm" not in shown(browser)
    assert browser.run("document.querySelector('[data-control=before]').ariaPressed") == "true"


def test_a_pass_lists_its_rewrites_when_it_is_opened(browser: Chromium, opened: Opened) -> None:
    opened(page())
    assert browser.run("document.querySelectorAll('#rewrites table').length") == 0
    passes = texts(browser, "#rewrites summary strong")
    browser.click("#rewrites details summary", nth=passes.index("matmul_add_fusion"))
    browser.wait("document.querySelectorAll('#rewrites table tbody tr').length === 8")
    browser.click("#rewrites .node-link")
    assert not browser.run("document.querySelector('.panel').hidden")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read(browser: Chromium, opened: Opened, theme: str) -> None:
    browser.prefer(theme=theme)
    opened(page())
    assert contrast(browser, "body") > 7
    for selector in (".quiet", "nav a", ".badge", ".card span"):
        assert contrast(browser, selector) > 4.5, selector
    assert (luminance(browser, "document.body", "backgroundColor") > 0.5) == (theme == "light")


def test_the_theme_can_be_chosen(browser: Chromium, opened: Opened) -> None:
    opened(page())
    browser.run("localStorage.clear()")
    browser.click(".theme")
    browser.click(".theme")
    assert texts(browser, ".theme") == ["Theme: dark"]
    assert luminance(browser, "document.body", "backgroundColor") < 0.2
    browser.click(".theme")


def luminance(browser: Chromium, element: str, colour: str) -> float:
    """The relative luminance of a colour of an element, as WCAG defines it; of a background, the first that shows."""
    text = browser.run(
        f"(() => {{ let e = {element}; let c; do {{ c = getComputedStyle(e).{colour}; e = e.parentElement; }}"
        " while (c === 'rgba(0, 0, 0, 0)' && e); return c; })()"
    )
    parts = [float(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(browser: Chromium, selector: str) -> float:
    """The contrast of text with what is behind it, as WCAG defines it."""
    element = f"document.querySelector({selector!r})"
    one, other = (luminance(browser, element, colour) for colour in ("color", "backgroundColor"))
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


def test_on_paper_everything_is_there_but_what_is_clicked(browser: Chromium, opened: Opened) -> None:
    browser.prefer(theme="dark")
    opened(page())
    assert browser.pdf().startswith(b"%PDF")
    browser.prefer(theme="dark", medium="print")
    assert luminance(browser, "document.body", "backgroundColor") == pytest.approx(1)
    hidden = (
        "['nav', '.controls', '.theme'].every((s) => getComputedStyle(document.querySelector(s)).display === 'none')"
    )
    assert browser.run(hidden)
    sizes = browser.run("[...document.querySelectorAll('svg.graph')].map((e) => e.getBoundingClientRect().height)")
    assert min(sizes) > 300


@pytest.mark.parametrize("width", [360, 800, 1300])
def test_nothing_is_wider_than_the_window(browser: Chromium, opened: Opened, width: int) -> None:
    browser.size(width, 700)
    for text in (page(), page(hostile=True), page(profile=True)):
        opened(text)
        browser.run("ortopt.explorer.select(1)")
        assert browser.run("document.documentElement.scrollWidth") <= width


def test_hostile_names_are_text(browser: Chromium, opened: Opened) -> None:
    opened(page(hostile=True))
    assert texts(browser, "h1") == [HOSTILE]
    for number in range(8):
        browser.run(f"ortopt.explorer.select({number})")
    browser.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    browser.run("ortopt.explorer.search.value = 'script'; ortopt.explorer.find()")
    assert HOSTILE in browser.run("document.querySelector('.panel').textContent")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.querySelectorAll('img, main script').length") == 0


def test_a_script_that_is_not_its_own_is_not_run(browser: Chromium, opened: Opened) -> None:
    opened(page().replace("</body>", "<script>window.foreign = true</script></body>"))
    assert browser.run("window.foreign") is None
    assert any("Content Security Policy" in problem for problem in browser.problems)
    browser.problems.clear()


def test_a_profile_is_shown_where_one_was_taken(browser: Chromium, opened: Opened) -> None:
    opened(page())
    assert "Profile" not in texts(browser, "h2")
    opened(page(profile=True))
    assert texts(browser, "#profile h3") == ["Original", "Result"]
    assert texts(browser, "#profile tbody td")[:4] == ["MatMul", "8", "1.250 ms", "75.0 %"]


def test_a_result_without_its_lineage_is_shown_alone(browser: Chromium, opened: Opened) -> None:
    opened(page_of(ortopt.optimize(network(2), verify=False)))
    assert browser.run("document.querySelectorAll('figure').length") == 1
    assert texts(browser, "figcaption")[0].startswith("Model")


@pytest.mark.parametrize("hostile", [False, True])
def test_a_notebook_shows_the_page_in_a_frame_that_cannot_reach_it(
    browser: Chromium, tmp_path: Path, hostile: bool
) -> None:
    path = tmp_path / "notebook.html"
    result = ortopt.optimize(rename(network(), HOSTILE) if hostile else network(), observers=[ortopt.Lineage()])
    shown = f"<!DOCTYPE html><meta charset=utf-8><p id=cell>{result._repr_html_()}"
    path.write_text(shown, encoding="utf-8")
    browser.call("Page.navigate", {"url": path.as_uri()})
    browser.wait("document.querySelector('iframe') !== null")
    assert texts(browser, "tr:first-child td")[:3] == ["nodes", "32", str(result.summary.after.nodes)]
    assert browser.run("document.querySelectorAll('script, img').length") == 0
    assert browser.run("document.querySelector('iframe').contentDocument") is None
    with browser.in_frame():
        browser.wait("document.documentElement?.dataset.ready")
        assert texts(browser, ".card strong")[0] == f"32 → {result.summary.after.nodes}"
        assert browser.run("origin") == "null"
        assert browser.run("(() => { try { return parent.document.title } catch (e) { return e.name } })()") == (
            "SecurityError"
        )


def test_two_models_are_compared(browser: Chromium, opened: Opened) -> None:
    first, second = network(3), network(2)
    opened(diff_page(first, second, compare(first, second, "a.onnx", "b.onnx")))
    assert texts(browser, "h1") == ["a.onnx and b.onnx"]
    assert "Interface and header" in texts(browser, "h2")
    assert "w2" in texts(browser, "#weights .name")
    assert texts(browser, "figcaption") == ["A 12 nodes", "B 8 nodes"]


def test_an_index_is_sorted_and_filtered(browser: Chromium, opened: Opened) -> None:
    rows = [
        ({"input": name, "nodes": {"before": 9, "after": nodes}, "verified": True}, f"./{name}.html")
        for name, nodes in (("b", 3), ("a", 5), (HOSTILE, 1))
    ]
    rows[1][0]["verification"] = {"worst": 0.0, "not_as_deployed": THEIRS}
    opened(index_page("several", rows))
    assert set(browser.run("[...document.querySelectorAll('td .badge, .card')].map((e) => e.classList[1])")) == {"good"}
    assert texts(browser, ".says li") == [THEIRS]
    assert texts(browser, "tbody td:first-child") == ["b", "a", HOSTILE]
    browser.click(".sort")
    assert texts(browser, "tbody td:first-child") == [HOSTILE, "a", "b"]
    browser.click(".sort", nth=3)
    assert texts(browser, "tbody td:nth-child(4)") == ["1", "3", "5"]
    browser.run("document.querySelector('.controls input').focus()")
    browser.type("a")
    browser.wait("document.querySelectorAll('tbody tr').length === 2")
    assert browser.run("document.querySelector('tbody a').getAttribute('href')").startswith("./")


def test_the_worst_models_of_a_check_are_on_top(browser: Chromium, opened: Opened) -> None:
    names = {"a": Status.SAME, "b": Status.WORSE, "c": Status.SAME, "d": Status.BROKEN, "e": Status.DIFFERS}
    opened(check_page.page(Check(tuple(Result(name, name, "", status) for name, status in names.items()), {})))
    assert texts(browser, "td.model") == ["d", "e", "b", "a", "c"]
    assert texts(browser, "td .badge") == ["broken", "differs", "worse", "same", "same"]
    browser.click(".sort")
    assert texts(browser, "td.model") == ["a", "b", "c", "d", "e"]
    browser.click(".sort", nth=1)
    assert texts(browser, "td.model")[:3] == ["d", "e", "b"]  # by what came of them, not by its spelling


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [600, 1400])
def test_a_check_can_be_read_at_any_width(browser: Chromium, opened: Opened, width: int, theme: str) -> None:
    facts = {
        "nodes": 12_345,
        "size": 1_500_000_000,
        "error": 1.2e-6,
        "latency": {"ratio": 0.8, "low": 0.7, "high": 0.9},
        "rewrites": {"a": 1},
    }
    name = f"models/{'a_long_name_' * 8}.onnx"
    says = "the outputs are NaN everywhere, and more is said of this one than has room in a line of a narrow window"
    browser.size(width, 850)
    browser.prefer(theme=theme)
    opened(
        check_page.page(
            Check(tuple(Result(name, name, "", one, error=says, facts=facts, seconds=12.5) for one in Status), {})
        )
    )
    badge = "[...document.querySelectorAll('td .badge')]"
    lines = f"{badge}.map((e) => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight))"
    assert max(browser.run(lines)) < 2  # no word of it is broken, and it is one line
    assert browser.run("document.documentElement.scrollWidth") <= width
    ends = "[...document.querySelectorAll('.said, td .badge')].map((e) => e.getBoundingClientRect().right)"
    assert max(browser.run(ends)) <= width
    assert "0.80×" in texts(browser, "td.number")
    assert contrast(browser, "td.number") > 4.5
    assert contrast(browser, "td .badge") > 4.5


def test_a_page_whose_data_is_broken_says_so(browser: Chromium, opened: Opened) -> None:
    opened(document({"title": "t", "kind": "run"}))
    assert "The page cannot be shown" in texts(browser, "main")[0]
    assert browser.problems
    browser.problems.clear()


def test_a_flat_graph_of_thousands_of_nodes_is_folded(browser: Chromium, opened: Opened, tmp_path: Path) -> None:
    body = " ".join(f"v{at + 1} = {('Relu', 'Exp', 'Neg', 'Tanh', 'Abs')[at % 5]} (v{at})" for at in range(5000))
    model = parse(f"main (float[2] v0) => (float[2] v5000) {{ {body} }}")
    opened(diff_page(model, model, compare(model, model, "a", "b")))
    assert browser.run("document.querySelectorAll('.item').length") < 200
    for _ in range(4):
        browser.click("figure .item.group")
    assert browser.run("document.querySelectorAll('.item').length") < 900
