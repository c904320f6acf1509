"""``ortopt bisect``: names the rewrite that makes a result differ, and writes a folder that reproduces it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt import GraphTransformer, registry
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.rules import with_passes
from tests.verification.wrong_passes import (
    Nearly,
    Raises,
    Tears,
    Unloadable,
    WrongAxis,
    WrongRaw,
    WrongRelu,
    WrongSum,
    WrongText,
)

FLOATS = """main (float[{n},4] x) => (float[{n},4] y, float[{n},4] z) {{
    i = Identity (x) a = Exp (i) b = Sin (a) r = Relu (b) s = Cos (r) y = Abs (s) z = Sin (a)
}}"""
IN_IF = """main (float[{n},4] x, bool c) => (float[{n},4] y) {{
    i = Sin (x)
    t = If (c) <
        then_branch = g () => (float[{n},4] t) {{ t = Relu (i) }},
        else_branch = h () => (float[{n},4] e) {{ k = Neg (i) e = Relu (k) }}
    >
    y = Cos (t)
}}"""
IN_FUNCTION = """
<ir_version: 10, opset_import: ["" : 20, "here" : 1]>
main (float[{n},4] x) => (float[{n},4] y) {{ i = Sin (x) j = here.Act (i) y = Cos (j) }}
<opset_import: ["" : 20], domain: "here">
Act (a) => (b) {{ k = Identity (a) r = Relu (k) b = Tanh (r) }}
"""
INTEGERS = """main (int64[{n}] x, int64[{n}] z) => (int64[{n}] y) {{
    i = Abs (x) s = Add (i, z) t = Neg (s) y = Abs (t)
}}"""
TEXTS = """main (string[{n}] x, string[{n}] z) => (string[{n}] y) {{
    i = Identity (x) s = StringConcat (i, z) y = StringConcat (s, s)
}}"""
IN_LOOP = """main (float[{n},4] x, int64 m, bool c) => (float[{n},4] y, float[K,{n},4] all) {{
    i = Sin (x) e = Exp (i)
    l, all = Loop (m, c, i) <body = b (int64 k, bool go, float[{n},4] s) => (bool on, float[{n},4] t, float[{n},4] o) {{
        on = Identity (go) r = Relu (s) t = Tanh (r) o = Add (t, e) }}>
    y = Cos (l)
}}"""
CASES: dict[str, tuple[str, type[GraphTransformer], str, tuple[str, ...]]] = {
    "main": (FLOATS, WrongRelu, "main", ()),
    "if": (IN_IF, WrongRelu, "_branch", ()),
    "loop": (IN_LOOP, WrongRelu, "Loop:body", ()),
    "function": (IN_FUNCTION, WrongRelu, "function here.Act", ("--keep-functions",)),
    "int64": (INTEGERS, WrongSum, "main", ()),
    "string": (TEXTS, WrongText, "main", ()),
}


WRONG = (WrongRelu, WrongSum, WrongText, WrongAxis, Nearly, WrongRaw, Raises, Tears, Unloadable)


@pytest.fixture(scope="module")
def _with_wrong_passes() -> registry.Registry:
    return with_passes(WRONG)


@pytest.fixture(autouse=True)
def _wrong(monkeypatch: pytest.MonkeyPatch, _with_wrong_passes: registry.Registry) -> None:
    monkeypatch.setattr(registry, "installed", lambda: _with_wrong_passes)


def write(text: str, **dims: object) -> None:
    save(parse(text.format(**dims), 20), "m.onnx")


def bisect(ortopt: Any, *arguments: str, code: int = 3) -> dict[str, Any]:
    done = ortopt("bisect", "m.onnx", "--json", *arguments, code=code)
    data: dict[str, Any] = json.loads(done.stdout)
    assert done.stderr.count("\n") == (code != 0)
    return data


def arrays(path: str) -> dict[str, Any]:
    with np.load(path) as stored:
        return dict(stored)


def reproduce(ortopt: Any, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch, code: int = 3) -> None:
    monkeypatch.chdir(data["folder"])
    assert len(data["commands"]) > 0
    for line in data["commands"]:
        words = shlex.split(line)
        assert words[0] == "ortopt"
        ortopt(*words[1:], code=code)


@pytest.mark.parametrize("n", ["3", "N"])
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_rewrite_is_found_and_shown(ortopt: Any, monkeypatch: pytest.MonkeyPatch, case: str, n: str) -> None:
    text, wrong, graph, more = CASES[case]
    write(text, n=n)
    data = bisect(ortopt, "--only", f"{wrong.name},identity_elimination", *more)
    found = data["culprit"]
    assert (found["kind"], found["pass"], found["level"], found["step"]) == ("rewrite", wrong.name, 1, 1)
    assert graph in found["graph"]
    assert len(found["nodes"]) == 1
    assert not data["whole_model"], data["why_whole"]
    assert data["nodes"] == [1, 1]
    assert {"before.onnx", "after.onnx", "inputs.npz", "expected.npz", "actual.npz", "README.txt", "versions.json"} == {
        *data["files"]
    }
    assert len(data["commands"]) == 2
    reproduce(ortopt, data, monkeypatch)


def test_the_part_is_as_small_as_it_can_be(ortopt: Any) -> None:
    write(FLOATS, n="N")
    data = bisect(ortopt, "-o", "found", "--only", "wrong_relu,identity_elimination")
    assert data["folder"] == "found"
    assert data["nodes"] == [1, 1]
    before, after = (onnx.load(f"found/{name}.onnx") for name in ("before", "after"))
    assert [node.op_type for node in before.graph.node] == ["Relu"]
    assert [node.op_type for node in after.graph.node] == ["Neg"]
    assert before.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    given, expected, actual = (arrays(f"found/{name}.npz") for name in ("inputs", "expected", "actual"))
    np.testing.assert_array_equal(expected["r"], np.maximum(given["b"], 0))
    np.testing.assert_array_equal(actual["r"], -given["b"])
    assert set(json.loads(Path("found/versions.json").read_text())) >= {"python", "onnx", "numpy"}
    assert "ortopt verify before.onnx after.onnx --inputs inputs.npz" in Path("found/README.txt").read_text()


def test_what_shows_further_down_only_is_taken_along(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A millionth is within the tolerance, but not where the rest is subtracted."""
    body = "o = Cos (x) p = Exp (o) a = Sin (p) i = Identity (a) d = Sub (i, a) c = Constant <value_float = 1e6> ()"
    write(f"main (float[N,4] x) => (float[N,4] y) {{{{ {body} m = Mul (d, c) n = Abs (m) y = Sqrt (n) }}}}")
    data = bisect(ortopt, "--only", "nearly")
    assert not data["whole_model"]
    assert 3 <= data["nodes"][0] < 9
    reproduce(ortopt, data, monkeypatch)


def test_names_that_are_paths_are_stored_all_the_same(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = parse(FLOATS.format(n="N"), 20)
    for node in made.graph:
        node.outputs[0].name = f"/m/../{node.outputs[0].name}"
    save(made, "m.onnx")
    data = bisect(ortopt, "--only", "wrong_relu")
    assert data["nodes"] == [1, 1]
    assert list(arrays("m.bisect/inputs.npz")) == ["/m/../b"]
    reproduce(ortopt, data, monkeypatch)


def test_weights_are_noise_where_it_still_fails(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "main (float[N,4] x, float[4,4] w) => (float[N,4] y) { a = MatMul (x, w) r = Softmax (a) y = Relu (r) }"
    made = parse(text.replace("Softmax (a)", "Softmax <axis = -1> (a)"), 20)
    weight = made.graph.inputs[1]
    weight.const_value = ir.tensor(np.eye(4, dtype=np.float32), name="w")
    made.graph.register_initializer(weight)
    del made.graph.inputs[1:]
    save(made, "m.onnx")
    data = bisect(ortopt, "--only", "wrong_axis", "-o", "axis")
    assert data["weights"] == {"noise": [], "kept": []}, "the weight is not near the rewrite"
    write_with_weight_in_if()
    data = bisect(ortopt, "--only", "wrong_relu")
    assert data["weights"] == {"noise": ["w"], "kept": []}
    stored = onnx.load(f"{data['folder']}/before.onnx").graph.initializer[0]
    assert not np.array_equal(onnx.numpy_helper.to_array(stored), np.eye(4, dtype=np.float32))
    reproduce(ortopt, data, monkeypatch)


EVERYWHERE = """
<ir_version: 10, opset_import: ["" : 21, "here" : 1]>
main (float[N,4] x, int64 m, bool c) => (float[N,4] y) {
    i = Sin (x)
    y = Loop (m, c, i) <body = b (int64 k, bool go, float[N,4] s) => (bool on, float[N,4] t)
        <float[4,4] inner = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
        on = Identity (go)
        q = Constant <value = int8[4,4] {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> ()
        scale = Constant <value_float = 0.01> ()
        w = DequantizeLinear (q, scale)
        d = MatMul (s, w) f = MatMul (d, inner) g = here.Scaled (f) t = Relu (g) }>
}
<opset_import: ["" : 21], domain: "here">
Scaled (a) => (b) { k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> ()
    l = ReduceMean <keepdims = 0> (k) b = Mul (a, l) }
<opset_import: ["" : 21], domain: "here">
Other (a) => (b) { k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]> () b = Mul (a, k) }
"""


def test_weights_are_noise_wherever_they_are(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    save(parse(EVERYWHERE, 21), "m.onnx")
    data = bisect(ortopt, "--only", "wrong_relu", "--keep-functions")
    assert data["weights"] == {"noise": ["inner", "k", "q"], "kept": []}
    stored = onnx.load(f"{data['folder']}/before.onnx")
    assert [function.name for function in stored.functions] == ["Scaled"], "what nobody calls stays at home"
    body = stored.graph.node[0].attribute[0].g
    quantized = next(node for node in body.node if node.op_type == "Constant")
    for tensor in (body.initializer[0], quantized.attribute[0].t):
        assert onnx.numpy_helper.to_array(tensor).reshape(-1).tolist() != list(range(1, 17))
    reproduce(ortopt, data, monkeypatch)


def write_with_weight_in_if() -> None:
    made = parse(
        """main (float[N,4] x, bool c, float[4,4] w) => (float[N,4] y) {
        y = If (c) <
            then_branch = g () => (float[N,4] t) { m = MatMul (x, w) t = Relu (m) },
            else_branch = h () => (float[N,4] e) { k = MatMul (x, w) e = Relu (k) }
        >
    }""",
        20,
    )
    weight = made.graph.inputs[2]
    weight.const_value = ir.tensor(np.eye(4, dtype=np.float32), name="w")
    made.graph.register_initializer(weight)
    del made.graph.inputs[2:]
    save(made, "m.onnx")


def test_external_data(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder stands alone, wherever it goes and whatever becomes of the model."""
    text = """main (float[N,64] x, float[64,64] w, bool c) => (float[N,64] y) { m = MatMul (x, w) y = If (c) <
        then_branch = g () => (float[N,64] t) { u = MatMul (m, w) t = Relu (u) },
        else_branch = h () => (float[N,64] e) { e = Relu (m) }> }"""
    made = parse(text, 20)
    weight = made.graph.inputs[1]
    weight.const_value = ir.tensor(np.eye(64, dtype=np.float32), name="w")
    made.graph.register_initializer(weight)
    del made.graph.inputs[1]
    save(made, "m.onnx", external_data="copy")
    data = bisect(ortopt, "--only", "wrong_relu")
    assert data["weights"] == {"noise": ["w"], "kept": []}
    for path in Path().glob("m.*"):
        if path.is_file():
            path.unlink()
    Path("m.bisect").rename("elsewhere")
    reproduce(ortopt, {**data, "folder": "elsewhere"}, monkeypatch)


def test_a_pass_that_offers_nothing_and_works_on_a_clone(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(FLOATS, n="N")
    data = bisect(ortopt, "--only", "wrong_raw")
    assert data["culprit"]["nodes"] == []
    reproduce(ortopt, data, monkeypatch)


@pytest.mark.parametrize(("wrong", "says"), [(Raises, "no such thing"), (Tears, "past the editor")])
def test_a_pass_that_fails_is_shown_on_the_smallest_part(
    ortopt: Any, monkeypatch: pytest.MonkeyPatch, wrong: type[GraphTransformer], says: str
) -> None:
    write(FLOATS, n="N")
    data = bisect(ortopt, "--only", f"{wrong.name},identity_elimination", "--check-each")
    assert data["status"] == "verified"
    assert (data["culprit"]["kind"], data["culprit"]["pass"]) == ("failure", wrong.name)
    assert says in data["culprit"]["reason"]
    assert data["nodes"][0] <= 2
    assert data["files"] == ["README.txt", "before.onnx", "versions.json"]
    reproduce(ortopt, data, monkeypatch, code=4)


@pytest.mark.processes
def test_a_result_that_does_not_run(ortopt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write("main (float[N] x) => (float[N] y) {{ i = Sin (x) e = Elu (i) y = Cos (e) }}")
    data = bisect(ortopt, "--only", "unloadable")
    assert data["culprit"]["error"] == "inf"
    assert "actual.npz" not in data["files"]
    reproduce(ortopt, data, monkeypatch)


def test_nothing_to_find(ortopt: Any) -> None:
    write(FLOATS, n="N")
    off = "nearly,wrong_relu,wrong_raw,wrong_axis,raises,tears"
    data = bisect(ortopt, "--disable", off, code=0)
    assert (data["status"], data["culprit"], data["folder"]) == ("verified", None, None)
    assert "none of them makes the result differ" in ortopt("bisect", "m.onnx", "--disable", off).stdout
    assert sorted(path.name for path in Path().iterdir()) == ["m.onnx"]


def test_for_people(ortopt: Any) -> None:
    write(FLOATS, n="N")
    done = ortopt("bisect", "m.onnx", "--only", "wrong_relu,identity_elimination", code=3)
    rows = dict(line.split(None, 1) for line in done.stdout.splitlines() if len(line.split(None, 1)) == 2)
    assert rows["pass"].strip() == "wrong_relu"
    assert rows["node"].strip() == "Relu r"
    assert rows["folder"].strip() == "m.bisect"
    assert "of Relu 'r' by wrong_relu (level 1, step 1, graph main) makes the result differ" in done.stderr


def test_a_folder_that_holds_something_is_left_alone(ortopt: Any) -> None:
    write(FLOATS, n="N")
    Path("m.bisect").mkdir()
    Path("m.bisect/mine").write_text("")
    assert "there is something already" in ortopt("bisect", "m.onnx", code=2).stderr
    assert "there is no folder" in ortopt("bisect", "m.onnx", "-o", "a/b", code=2).stderr
    ortopt("bisect", "none.onnx", "-o", "c", code=2)
    assert not Path("c").exists()
