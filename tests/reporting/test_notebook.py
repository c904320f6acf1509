"""What a notebook shows of a result: figures, the verdict, and the page in a frame; no name in a model is markup."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import onnx_ir as ir
import pytest

import ortopt
from ortopt.reporting import notebook
from ortopt.reporting.page.pages import run_page
from ortopt.reporting.report import as_dict
from ortopt.testing import parse

MODEL = """<ir_version: 9, opset_import: ["": 17]>
main (float[N] x) => (float[N] y) { a = Identity (x) b = Relu (a) y = Abs (b) }"""
HOSTILE = "</td></iframe><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u2028"


class Elements(HTMLParser):
    """The elements of a text, each with its attributes, and the text outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def frame(self) -> dict[str, str | None]:
        """The attributes of the only frame."""
        (attributes,) = (attributes for tag, attributes in self.found if tag == "iframe")
        return attributes


def hostile() -> ir.Model:
    model = parse("main (float[N] x) => (float[N] y) { a = Identity (x) b = Relu (a) y = Abs (b) }")
    model.graph.name = HOSTILE
    model.opset_imports[HOSTILE] = 1
    model.metadata_props[HOSTILE] = HOSTILE
    for at, node in enumerate(model.graph):
        node.name = f"{HOSTILE}{at}"
        node.metadata_props[HOSTILE] = HOSTILE
    relu = model.graph[1]
    relu.domain, relu.op_type = HOSTILE, HOSTILE
    for value in (model.graph.inputs[0], relu.outputs[0]):
        value.name = f"{HOSTILE}{value.name}"
    return model


def rows(shown: str) -> list[list[str]]:
    return [
        [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", shown)
    ][1:]


@pytest.mark.usefixtures("models_run_here")
def test_it_has_the_figures_the_verdict_and_the_page() -> None:
    result = ortopt.optimize(parse(MODEL), observers=[ortopt.Lineage()])
    shown = result._repr_html_()
    assert shown == ortopt.notebook_html(result)
    assert rows(shown) == [
        ["nodes", "3", "2", "-1"],
        ["initializers", "0", "0", ""],
        ["constants", "0 B", "0 B", ""],
        ["Identity", "1", "0", "-1"],
    ]
    elements = Elements(shown)
    assert "3 → 2 nodes" in elements.texts[0]
    assert re.search(r"verified on ONNX Runtime [\d.]+ \(CPU; no difference\)", elements.texts[0])
    assert elements.frame()["srcdoc"] == run_page(result, as_dict(result))
    assert elements.frame()["sandbox"] == "allow-scripts", "an origin of its own: it cannot reach the notebook"


def test_it_says_that_a_result_is_not_verified_and_how_the_original_is_shown() -> None:
    shown = ortopt.optimize(parse(MODEL), verify=False)._repr_html_()
    assert "not verified" in Elements(shown).texts[0]
    assert "observers=[ortopt.Lineage()]" in shown.rpartition("</iframe>")[2]


@pytest.mark.parametrize("verify", [False, True])
def test_no_name_in_a_model_is_markup(verify: bool) -> None:
    result = ortopt.optimize(hostile(), observers=[ortopt.Lineage()], verify=verify, level=1)
    assert result.verification is None or result.verification.status == "impossible"
    elements = Elements(result._repr_html_())
    tags = {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "iframe", "small", "code"}
    assert {tag for tag, _ in elements.found} <= tags
    assert {name for _, attributes in elements.found for name in attributes} <= {
        *("class", "style", "colspan", "title", "sandbox", "loading", "width", "height", "srcdoc")
    }
    page = Elements(elements.frame()["srcdoc"] or "")
    assert [attributes for tag, attributes in page.found if tag == "script"] == [
        {"type": "text/plain", "id": "data"},
        {},
    ]
    assert "img" not in {tag for tag, _ in page.found}


@pytest.mark.parametrize("limit", ["MAX_PAGE", "MAX_NODES"])
def test_a_page_that_is_too_large_is_left_out_and_says_how_it_is_had(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook, limit, 1)
    shown = ortopt.optimize(parse(MODEL), verify=False)._repr_html_()
    assert "iframe" not in {tag for tag, _ in Elements(shown).found}
    assert "write_page(result," in shown


def test_only_the_ops_that_changed_most_are_listed() -> None:
    ops = ("Abs", "Exp", "Neg", "Tanh", "Sin", "Cos", "Ceil", "Floor")
    body = " ".join(f"v{at + 1} = {op} (v0)" for at, op in enumerate(ops))
    model = parse(f"main (float[2] v0) => (float[2] y) {{ {body} y = Relu (v0) }}")
    listed: list[Any] = rows(ortopt.optimize(model, verify=False)._repr_html_())
    assert len(listed) == 3 + notebook._MAX_OPS + 1
    assert listed[-1] == [f"{len(ops) - notebook._MAX_OPS} more ops changed"]
