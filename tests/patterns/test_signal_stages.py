"""Stages of convolutions of signals: what belongs to them, and their halo."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.analysis.shapes import infer_model
from ortopt.graph import scope
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.testing import parse
from ortopt.transformers.lowering.onnxruntime_cpu._signal_stages import Halo, Stage, stage_of

WEIGHTS = "float[2,2,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}"


def stage(nodes: str, *, root: str = "c", more: str = "", inputs: str = "", reverse: bool = False) -> Stage:
    """The stage of the convolution with some result."""
    text = f"main (float[1,2,L] x{inputs}) => (float[1,2,L] y) <{WEIGHTS}{more}> {{ {nodes} }}"
    model = parse(text)
    scope.attach(model, Options())
    infer_model(model)
    if reverse:
        model.graph.extend(list(reversed(list(model.graph))))
    return stage_of(next(node for node in model.graph if node.outputs[0].name == root))


def names(values: tuple[ir.Value, ...]) -> list[str | None]:
    return [value.name for value in values]


def results(of: Stage) -> list[str | None]:
    return [node.outputs[0].name for node in of.nodes]


RESIDUAL = """
    c = Conv <pads = [1, 1]> (x, w)
    d = Relu (c)
    e = Conv <pads = [4, 0], dilations = [2]> (d, w)
    f = Add (e, x)
    g = Conv <pads = [0, 2]> (f, w)
    y = Add (g, f)
"""


@pytest.mark.parametrize("reverse", [False, True])
def test_the_longest_way(reverse: bool) -> None:
    """In any order of the graph: new nodes may stand before what they read."""
    found = stage(RESIDUAL, reverse=reverse)
    assert found.halo == Halo(5, 3)
    assert names(found.entries) == ["x"]
    assert names(found.exits) == ["y"]
    place = {name: at for at, name in enumerate(results(found))}
    assert len(place) == 6
    assert all(place[a] < place[b] for a, b in ("cd", "de", "ef", "fg", "gy"))


def test_an_inner_result_that_is_used_elsewhere() -> None:
    text = (
        "c = Conv <pads = [1, 1]> (x, w) d = Conv <pads = [1, 1]> (c, w) m = ReduceMean <axes = [2]> (c) y = Add (d, m)"
    )
    found = stage(text)
    assert names(found.exits) == ["c", "d"]
    assert results(found) == ["c", "d"]


ENDS = {
    "what reads one signal stays outside": ("r = Relu (x) c = Conv <pads = [1, 1]> (r, w) y = Relu (c)", ["c"]),
    "what saves a signal is inside": (
        "r = Relu (x) c = Conv <pads = [1, 1]> (r, w) d = Conv <pads = [1, 1]> (x, w) y = Add (c, d)",
        ["r", "c", "d", "y"],
    ),
    "another length ends it": ("c = Conv <pads = [1, 1]> (x, w) d = Conv (c, w) y = Pad (d, p)", ["c"]),
    "another op ends it": ("c = Conv <pads = [1, 1]> (x, w) y = Softmax (c)", ["c"]),
    "a constant of positions ends it": ("c = Conv <pads = [1, 1]> (x, w) d = Relu (c) y = Add (d, q)", ["c"]),
}


@pytest.mark.parametrize("case", ENDS)
def test_ends(case: str) -> None:
    text, inside = ENDS[case]
    found = stage(text, more=", int64[6] p = {0,0,1,0,0,1}, float[1,2,7] q = {1,2,3,4,5,6,7,1,2,3,4,5,6,7}")
    assert results(found) == inside


def test_one_of_the_first_is_asked() -> None:
    with pytest.raises(Refusal, match="comes before"):
        stage(RESIDUAL, root="g")


def test_a_signal_of_numbers_is_none() -> None:
    more = ", float[1,2,4] q = {1,2,3,4,1,2,3,4}"
    with pytest.raises(Refusal, match="it reads no signal"):
        stage("c = Conv <pads = [1, 1]> (q, w) y = Add (c, x)", more=more)


def test_what_nothing_needs() -> None:
    with pytest.raises(Refusal, match="nothing needs it"):
        stage("c = Conv <pads = [1, 1]> (x, w) d = Relu (c) y = Relu (x)")
