"""Results for the runtimes that are named: what is declared of them decides which nodes may come in."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from ortopt import UsageError, optimize
from ortopt.analysis import providers, releases, targets
from ortopt.analysis.shapes import infer_model
from ortopt.cli.group import commands
from ortopt.graph import scope
from ortopt.optimization.request import make_options
from ortopt.options import Options, Target
from ortopt.serialization.load import load
from ortopt.testing import parse

NAMED = [target for target in Target if target not in (Target.ORT, Target.ONNX)]
HARD_SWISH = """<ir_version: 8, opset_import: ["": 14]>
main (float[N,8] x) => (float[N,8] y)
<float three = {3}, float zero = {0}, float six = {6}>
{ a = Add (x, three) b = Clip (a, zero, six) c = Mul (x, b) y = Div (c, six) }"""


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("target", NAMED)
def test_each_is_declared_with_its_source(target: Target) -> None:
    declared = targets.of(target)
    assert declared is not None
    assert declared.source
    assert declared.providers
    assert set(declared.providers) <= set(providers.NAMES)
    assert all(onnx.defs.has(op) for op in {*declared.lacks, *(declared.has or ())})
    assert not declared.lacks & (declared.has or frozenset())


def test_any_runtime_and_the_one_here_are_not_declared() -> None:
    assert targets.of(Target.ORT) is targets.of(Target.ONNX) is None
    assert targets.described(Target.ORT) is None


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (("cpu",), Target.ORT),
        (("cuda", "cpu"), Target.ORT),
        (("openvino", "cpu"), Target.OPENVINO),
        (("cpu", "qnn"), Target.QNN),
        (("tensorrt", "cuda"), Target.TENSORRT),
        (("coreml",), Target.COREML),
        (("webgpu",), Target.WEB),
        (("xnnpack",), Target.MOBILE),
        (("dml",), Target.ONNX),
    ],
)
def test_a_provider_implies_its_target(given: tuple[str, ...], target: Target) -> None:
    assert make_options(providers=given).target is target
    assert make_options(providers=given, target=None).target is target


def test_a_target_that_is_named_wins() -> None:
    assert make_options(providers=("openvino",), target="onnx").target is Target.ONNX


@pytest.mark.parametrize(("target", "provider"), [("web", "cuda"), ("openvino", "tensorrt"), ("qnn", "coreml")])
def test_a_provider_of_another_runtime_contradicts(target: str, provider: str) -> None:
    with pytest.raises(UsageError, match="does not run what is for"):
        make_options(target=target, providers=(provider,))


@pytest.mark.parametrize(("target", "takes"), [("onnx", True), ("qnn", True), ("coreml", False)])
def test_an_op_that_the_runtime_lacks_does_not_come_in(target: str, takes: bool) -> None:
    result = optimize(parse(HARD_SWISH.replace("N", "4")), target=target)
    assert ("HardSwish" in ops(result.model)) is takes


def test_an_op_that_it_lacks_may_stay_and_be_replaced_by_another() -> None:
    declared = targets.of(Target.COREML)
    assert declared is not None
    assert not declared.runs(ir.node("HardSwish", [ir.val("x")]))
    assert declared.runs(ir.node("Relu", [ir.val("x")]))
    assert declared.runs(ir.node("HardSwish", [ir.val("x")], domain="other"))


def test_what_is_slow_there_does_not_come_in() -> None:
    model = HARD_SWISH.replace("N", "4").replace('"": 14', '"": 13')
    for target, taken in (("onnx", True), ("openvino", False)):
        assert ("HardSigmoid" in ops(optimize(parse(model), target=target).model)) is taken


@pytest.mark.parametrize("target", [target for target in NAMED if target.keeps_to_onnx])
def test_those_with_standard_ops_only_get_no_others(target: Target) -> None:
    model = parse("main (float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul (x, w) y = Relu (a) }")
    result = optimize(model, target=target.value)
    assert all(not node.domain for node in result.model.graph)


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        ('y = Pad <mode = "constant"> (x, s)', ""),
        ("y = Pad (x, s)", ""),
        ('y = Pad <mode = "edge"> (x, s)', ""),  # right of integers, and never wrong
        ('y = Pad <mode = "wrap"> (x, s)', "not always right"),
        ('d = Cast <to = 11> (x) p = Pad <mode = "edge"> (d, s) y = Cast <to = 1> (p)', "not always right"),
        ('y = Pad <mode = "another"> (x, s)', "not always right"),
        ("y = MaxPool <kernel_shape = [2]> (x)", ""),
        ("y = Mod <fmod = 1> (x, x)", ""),
        ("y = Mod (x, x)", "not always right"),
        ("y = MaxPool <kernel_shape = [2], ceil_mode = 1> (x)", "not always right"),
        ("y = Min (x, x)", "not always right"),
        ("y = Max (x, x)", "not always right"),  # declared: of a NaN it is wrong
        ("y = Sum (x, x)", ""),
        ("y = Sum (x, x, x)", ""),
        ("y = Sum (x)", "not always right"),
    ],
)
def test_of_an_op_that_is_not_always_right_forms_are_that_were_never_wrong(node: str, fault: str) -> None:
    declared = targets.of(Target.OPENVINO)
    assert declared is not None
    model = parse(f"main (float[1,4,4] x, int64[6] s) => (float[A,B,C] y) {{ {node} }}")
    infer_model(model)
    (tested,) = (node for node in model.graph if node.op_type != "Cast")
    assert declared.fault(tested) == fault


@pytest.mark.parametrize(
    ("node", "fault"),
    [
        ("LSTM <hidden_size = 9> (x, w, r)", ""),
        ("LSTM <hidden_size = 9> (x, w, r, b)", ""),
        ("LSTM <hidden_size = 9> (x, w, r, b, , h, c, p)", "not always right"),  # with peepholes
        ("LSTM <hidden_size = 9, layout = 1> (x, w, r)", "not always right"),
        ('LSTM <hidden_size = 9, activations = ["Relu", "Tanh", "Tanh"]> (x, w, r)', "not always right"),
    ],
)
def test_forms_of_recurrent_layers_are_told_by_their_inputs(node: str, fault: str) -> None:
    declared = targets.of(Target.OPENVINO)
    assert declared is not None
    inputs = "float[4,1,3] x, float[1,36,3] w, float[1,36,9] r, float[1,72] b, float[1,1,9] h, float[1,1,9] c"
    model = parse(f"main ({inputs}, float[1,27] p) => (float[A,B,C,D] y) {{ y = {node} }}")
    infer_model(model)
    assert declared.fault(model.graph[0]) == fault


def test_the_newest_opset_is_the_runtimes() -> None:
    result = optimize(parse("main (float[2] x) => (float[2] y) { y = Relu (x) }"), target="tensorrt", opset="latest")
    assert result.model.opset_imports[""] == 20


def test_the_release_of_a_runtime_that_is_released_apart_counts() -> None:
    declared = targets.of(Target.WEB)
    assert declared is not None
    assert declared.release is not None
    known = releases.parse_release(declared.release)
    assert releases.least(Options(target=Target.WEB)) == min(known, releases.installed())
    assert releases.least(Options(target=Target.WEB, min_onnxruntime=(1, 20))) == (1, 20)


@pytest.mark.parametrize(
    ("target", "text", "told"),
    [
        (
            "tensorrt",
            '<ir_version: 10, opset_import: ["": 22]> main (float[2] x) => (float[2] y) { y = Relu (x) }',
            "opsets up to 20",
        ),
        ("qnn", "main (float[N] x) => (float[N] y) { y = Relu (x) }", r"fixed sizes only \(--dim N=SIZE\)"),
        ("coreml", "main (float[2] x) => (float[2] y) { y = Sin (x) }", r"does not run Sin \(1\)"),
    ],
)
def test_what_the_runtime_does_not_take_is_a_warning(target: str, text: str, told: str) -> None:
    declared = targets.of(Target(target))
    assert declared is not None
    (reason,) = targets.unmet(parse(text), declared)
    assert re.search(told, reason)


def test_the_command_says_what_the_result_is_for(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    ir.save(parse(HARD_SWISH), model)
    result = CliRunner().invoke(
        commands, ["optimize", str(model), "-o", str(tmp_path / "out.onnx"), "--provider", "qnn", "-v"]
    )
    assert result.exit_code == 0, result.output
    assert "with QNNExecutionProvider (--target qnn)" in result.output
    assert "fixed sizes only (--dim N=SIZE)" in result.output
    assert all(not node.domain for node in load(tmp_path / "out.onnx").graph)


@pytest.mark.parametrize(
    ("target", "text", "kept"),
    [
        ("openvino", "main (float x) => (int64[R] y) { a = Relu (x) y = Shape (a) }", "Shape"),
        ("openvino", "main (float[0,3] x) => (bool[0,3] m) { a, k = Dropout (x) m = Not (k) }", "Dropout"),
        ("openvino", "main (float[2,3] x) => (int64[R] y) { a = Relu (x) y = Shape (a) }", ""),
        ("onnx", "main (float x) => (int64[R] y) { a = Relu (x) y = Shape (a) }", ""),
    ],
)
def test_constants_without_elements_do_not_come_in_where_they_are_read_as_scalars(
    target: str, text: str, kept: str
) -> None:
    result = optimize(parse(f'<ir_version: 10, opset_import: ["": 17]> {text}'), target=target)
    assert (kept in ops(result.model)) is bool(kept)


def test_a_guard_against_nan_is_no_relu_where_that_lets_none_through() -> None:
    text = "main (float[N,8] x) => (float[N,8] y) <float zero = {0}> { c = Less (x, zero) y = Where (c, zero, x) }"
    for target, taken in (("onnx", True), ("openvino", False)):
        assert ("Relu" in ops(optimize(parse(text), target=target).model)) is taken


TRANSPOSED = """main (float[1,4,5,3] x, bool c) => (float[1,4,5,3] y, float[1,4,5,3] z) {
    a = Transpose <perm = [0, 3, 1, 2]> (x) b = Relu (a) y = Transpose <perm = [0, 2, 3, 1]> (b)
    z = If (c) <then_branch = t () => (float[1,4,5,3] p) { q = Transpose <perm = [0, 2, 3, 1]> (b) p = Neg (q) },
    else_branch = e () => (float[1,4,5,3] r) { r = Exp (x) }> }"""
BRANCHES = """If (c) <then_branch = t () => (float[2] p) { p = Neg (a) },
    else_branch = e () => (float[2] r) { r = Exp (x) }>"""
COPIED = f"main (float[2] x, bool c) => (float[2] y, float[2] z) {{ a = Relu (x) y = Identity (a) z = {BRANCHES} }}"
TWICE = COPIED.replace("Identity (a)", "Relu (x)")
IN_A_BODY = f"""main (float[2] x, bool c, bool d) => (float[2] v, float[2] w) {{
    v, w = If (d) <then_branch = t1 () => (float[2] y, float[2] z) {{ a = Relu (x) y = Identity (a) z = {BRANCHES} }},
    else_branch = e1 () => (float[2] s, float[2] u) {{ s = Exp (x) u = Neg (x) }}> }}"""
LOOP = """Loop (n, c, x) <body = b (int64 i, bool g, float[2] s) => (bool h, float[2] r) {
    h = Identity (g) r = Sub (s, y) }>"""


def misread(model: ir.Model) -> frozenset[str]:
    scope.attach(model, Options())
    return targets.misread(scope.graphs(model), {"If"})


@pytest.mark.parametrize("text", [TRANSPOSED, COPIED, TWICE, IN_A_BODY])
@pytest.mark.parametrize("target", ["openvino", "onnx"])
def test_no_branch_begins_to_read_an_output_where_it_is_read_wrongly(target: str, text: str) -> None:
    """OpenVINO 2026.4 gives the output itself instead of what the branch computes of it."""
    text = f'<ir_version: 10, opset_import: ["": 17]> {text}'
    assert misread(optimize(parse(text)).model) == {"y"}  # elsewhere it is the shorter form
    assert misread(optimize(parse(text), target=target).model) == frozenset()


@pytest.mark.parametrize(
    ("node", "outputs"),
    [(BRANCHES.replace("(a)", "(y)"), ["y"]), (BRANCHES.replace("(a)", "(x)"), []), (BRANCHES, []), (LOOP, [])],
)
def test_what_the_model_itself_has_of_that_is_a_warning_and_may_change(node: str, outputs: list[str]) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 17]> main (float[2] x, bool c, int64 n) => (float[2] x, float[2] y,
        float[2] z) {{ a = Sigmoid (x) b = Neg (a) y = Neg (b) z = {node} }}"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = optimize(parse(text), target="openvino")
    assert misread(result.model) == {*outputs}
    assert ("Neg" in ops(result.model)) is (node == BRANCHES)
    told = [str(one.message) for one in caught]
    assert [one.rpartition(": ")[2] for one in told if "reads outputs of the model wrongly in" in one] == outputs


def attention(queries: str, heads: int = 4, q: str = "") -> ir.Model:
    return parse(f"""<ir_version: 10, opset_import: ["": 17]>
        main (float[{q or f"3,4,{heads},32"}] q, float[3,{heads},32,16] k, float[3,{heads},16,32] v)
        => (float[3,4,{heads},32] y)
        <float scale = {{0.4}}> {{ {queries} s = Mul (h, scale) t = MatMul (s, k) p = Softmax <axis = -1> (t)
        o = MatMul (p, v) y = Transpose <perm = [0, 2, 1, 3]> (o) }}""")


TURNED = "a = Transpose <perm = [0, 3, 1, 2]> (q) h = Transpose <perm = [0, 2, 1, 3]> (a)"


def mistaken(model: ir.Model) -> frozenset[str]:
    scope.attach(model, Options())
    return targets.mistaken(model.graph)


@pytest.mark.parametrize("target", ["openvino", "onnx"])
def test_queries_keep_their_transpose_where_heads_are_taken_for_positions(target: str) -> None:
    """OpenVINO 2026.4 computes something else where the result goes through a Transpose and the queries do not."""
    elsewhere, there = (optimize(attention(TURNED, q="3,4,32,4"), level=1, target=to) for to in ("ort", target))
    assert mistaken(elsewhere.model) == {"p"}
    assert mistaken(there.model) == frozenset()


@pytest.mark.parametrize(
    ("queries", "heads", "told"),
    [
        ("h = Transpose <perm = [0, 2, 1, 3]> (q)", 4, []),
        ("a = Transpose <perm = [0, 2, 1, 3]> (q) h = Neg (a)", 4, ["p"]),
        ("a = Transpose <perm = [0, 2, 1, 3]> (q) h = Neg (a)", 8, []),
    ],
)
def test_a_models_own_attention_that_is_mistaken_is_a_warning(queries: str, heads: int, told: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimize(attention(queries, heads), level=1, target="openvino", verify=False)
    messages = [str(one.message) for one in caught]
    assert [one.rpartition(": ")[2] for one in messages if "takes heads for positions" in one] == told
