"""Behaviour by behaviour of ONNX Runtime's lazy-tensor fuser (OrtFuser, row B), and what each behaviour is on ONNX."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
import pytest

from ortopt.analysis.kernels import CPU, CUDA, Support
from ortopt.api import optimize
from ortopt.errors import UsageError
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import group, partition
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from ortopt.verification.verify import verify
from tests.partition.grouped_models import WORK, grouped, names, ops, outside


def test_row_b_predicate_kernel_registry() -> None:
    model, groups = grouped(f"{WORK} {{ t = MatMul (x, w) u = Neg (t) y = MatMul (u, w) }}")
    assert [ops(found) for found in groups] == [["MatMul"], ["MatMul"]]
    assert outside(model) == ["Neg"]


def test_row_b_predicate_after_automatic_casts() -> None:
    model = parse("main (float16[N,4] x) => (float16[N,4] y) { y = Relu (x) }")  # no float16 kernel on CPU: ORT casts
    (found,) = group(model)
    assert found.provider == CPU


def test_row_b_predicate_function_op() -> None:
    (found,) = group(parse("main (float[N,4] x) => (float[N,4] y) { y = HardSwish (x) }"))
    assert ops(found) == ["HardSwish"]


def test_row_b_predicate_opset_and_types() -> None:
    unknown = parse("main (int16[N] x) => (int16[N] y) { y = Relu (x) }", opset=17)
    assert group(unknown) == []  # nobody has a kernel for the type


def test_row_b_predicate_allow_and_deny() -> None:
    text = f"{WORK} {{ t = MatMul (x, w) y = Relu (t) }}"
    (found,) = group(parse(text), PartitionOptions(allow=("MatMul",)))
    assert ops(found) == ["MatMul"]
    (found,) = group(parse(text), PartitionOptions(deny=("Relu",)))
    assert ops(found) == ["MatMul"]
    assert group(parse(text), PartitionOptions(deny=("Relu@cpu", "MatMul@cpu"))) == []
    for options in (
        {"deny": ("@cpu",)},
        {"deny": ("Relu:MatMul",)},
        {"allow": ("Relu MatMul",)},
        {"allow": ("Relu@gpu7",)},
        {"argument_limit": 0},
        {"policy": "best"},
    ):
        with pytest.raises(UsageError):
            PartitionOptions(**options)  # type: ignore[arg-type]


def test_row_b_predicate_lists_in_the_text_of_a_pipeline() -> None:
    text = f"{WORK} {{ t = MatMul (x, w) u = Relu (t) v = Tanh (u) y = MatMul (v, w) }}"
    result = optimize(parse(text), passes="group_fusion{deny=Relu Tanh@cpu,policy=literal}", level=4)
    assert outside(result.model) == ["Relu", "Tanh"]
    with pytest.raises(UsageError, match="names no op"):
        optimize(parse(text), passes="group_fusion{deny=Relu:Tanh}", level=4)


def test_row_b_predicate_of_the_user() -> None:
    asked: list[tuple[str, str, Support | None]] = []

    def mine(node: ir.Node, provider: str, how: Support | None) -> bool:
        asked.append((node.op_type, provider, how))
        return node.op_type == "MatMul" or node.domain == "other"

    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "other" : 1]> main (float[N,4] x, float[4,4] w) => (float[N,4] y)
        { t = MatMul (x, w) u = Relu (t) y = other.Thing (u) }"""
    )
    groups = group(model, PartitionOptions(predicate=mine))
    assert [ops(found) for found in groups] == [["MatMul"], ["Thing"]]
    assert ("Thing", CPU, None) in asked
    assert ("Relu", CPU, Support.KERNEL) in asked


def test_row_b_merging_keeps_order_and_every_connection() -> None:
    _, (found,) = grouped(
        """main (float[N] a, float[N] b) => (float[N] y, float[N] z)
        { t = Sub (a, b) u = Sub (t, b) y = Sub (u, t) z = Sub (b, y) }"""
    )
    assert [names(tuple(v for v in node.inputs if v)) for node in found.nodes] == [
        ["a", "b"],
        ["t", "b"],
        ["u", "t"],
        ["b", "y"],
    ]


def test_row_b_arguments_runtime_values_then_weights_small_constants_inside() -> None:
    w, big, small = (",".join(["0.5"] * count) for count in (256, 512, 16))
    model, (found,) = grouped(
        f"""main (float[N,16] x, float s) => (float[N,16] y)
        <float[16,16] w = {{{w}}}, float[32,16] big = {{{big}}}, float[16] small = {{{small}}}> {{
        k = Constant <value_int = 3> () t = MatMul (x, w) u = Mul (t, s) v = Gather (big, k)
        r = Add (u, v) y = Add (r, small) }}"""
    )
    assert names(found.inputs) == ["x", "s"]
    assert names(found.weight_inputs) == ["big"]  # 2 kB; w has just what a small constant may have
    assert Counter(node.op_type for node in found.nodes)["Constant"] == 3
    assert list(model.graph.initializers) == ["big"]


def test_row_b_an_overridable_initializer_is_no_weight() -> None:
    _, (found,) = grouped(
        "main (float[N,4] x, float[4] b) => (float[N,4] y) <float[4] b = {1,2,3,4}> { t = Add (x, b) y = Relu (t) }"
    )
    assert names(found.inputs) == ["x", "b"]
    assert found.weights == 0


def test_row_b_no_circle_through_the_outside() -> None:
    for policy in ("cost", "literal"):
        model, groups = grouped(
            f"{WORK} {{ t = MatMul (x, w) u = Neg (t) s = MatMul (t, w) v = Add (s, u) y = MatMul (v, w) }}",
            policy=policy,
        )
        assert outside(model) == ["Neg"]
        assert sorted(len(ops(found)) for found in groups) == [2, 2] if policy == "cost" else True
        assert len(groups) == 2


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_row_b_argument_limit(policy: str) -> None:
    text = """main (float[N] a, float[N] b, float[N] c, float[N] d, float[N] e) => (float[N] y)
    { t = Add (a, b) u = Add (t, c) v = Add (u, d) y = Add (v, e) }"""
    _, groups = grouped(text, policy=policy, argument_limit=4)
    assert len(groups) > 1
    assert all(len(found.inputs) + len(found.outputs) <= 4 for found in groups)
    assert len(grouped(text, policy=policy)[1]) == 1


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_row_b_argument_limit_counts_what_the_graphs_caller_wants(policy: str) -> None:
    body = "a = Exp (x) b = Sin (a) c = Cos (b) d = Exp (c) e = Sin (d)"
    text = f"main (float[N] x) => (float[N] a, float[N] b, float[N] c, float[N] d, float[N] e) {{ {body} }}"
    # The fuser adds up the arguments of both before it fuses them.
    _, groups = grouped(text, policy=policy, argument_limit=3 if policy == "cost" else 4)
    assert [ops(found) for found in groups] == (
        [["Exp", "Sin"], ["Cos", "Exp"], ["Sin"]] if policy == "cost" else [["Exp"], ["Sin", "Cos"], ["Exp", "Sin"]]
    )
    assert all(len(found.inputs) + len(found.outputs) <= 3 for found in groups)


def test_row_b_weights_do_not_count_as_arguments() -> None:
    weights = ",".join(["1"] * 512)
    declared = ", ".join(f"float[512] w{i} = {{{weights}}}" for i in range(6))
    body = "t0 = Add (x, w0) " + " ".join(f"t{i} = Mul (t{i - 1}, w{i})" for i in range(1, 6)) + " y = Relu (t5)"
    _, (found,) = grouped(f"main (float[512] x) => (float[512] y) <{declared}> {{ {body} }}", argument_limit=2)
    assert (len(found.inputs), found.weights, len(found.outputs)) == (1, 6, 1)


def test_row_b_outputs_used_elsewhere_and_graph_outputs() -> None:
    _, groups = grouped(
        """main (float[N,4] x, float[4,4] w) => (float[N,4] y, float[N,4] t)
        { t = MatMul (x, w) u = Relu (t) v = Sqrt (u) n = Neg (u) y = Add (n, v) }""",
        policy="literal",
    )
    first = next(found for found in groups if "MatMul" in ops(found))
    assert set(names(first.outputs)) == {"t", "u"}


def test_row_b_after_fusing_dce_cse_and_constant_pooling() -> None:
    result = optimize(
        parse(
            """main (float[N,4] x) => (float[N,4] y) {
            a = Exp (x) b = Exp (x) c = Constant <value_float = 2.0> () d = Constant <value_float = 2.0> ()
            e = Sqrt (a) f = Mul (a, c) g = Mul (b, d) y = Add (f, g) }"""
        ),
        passes="group_fusion,constant_sharing,common_subexpression_elimination,dead_node_elimination",
        level=4,
    )
    (found,) = groups_of(result.model)
    assert Counter(node.op_type for node in found.nodes) == {"Constant": 1, "Exp": 1, "Mul": 1, "Add": 1}
    assert result.verified


def test_row_b_passes_run_inside_each_group() -> None:
    """Whatever has come to be in a group: these nodes were never outside of one."""
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1]>
        main (float[N,4] x) => (float[N,4] y) { t = Neg (x) y = ortopt.group.group_0 (t) }
        <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) {
            c = Constant <value_float = 2.0> () d = Constant <value_float = 2.0> ()
            a = Exp (p) b = Exp (p) e = Sqrt (a) f = Mul (a, c) g = Mul (b, d) r = Add (f, g) }"""
    )
    for function in model.functions.values():
        function.metadata_props.update({"ortopt.provider": CPU, "ortopt.weights": "0"})
    result = optimize(model, level=1)
    (found,) = groups_of(result.model)
    assert Counter(node.op_type for node in found.nodes) == {"Constant": 1, "Exp": 1, "Mul": 1, "Add": 1}
    assert result.verified


LOOP = """main (float[4,4] w, bool go) => (float[4,4] y) {
    n = Constant <value_int = 3> ()
    y = Loop <body = body (int64 i, bool c, float[4,4] s) => (bool d, float[4,4] t) {
        d = Identity (c) u = MatMul (s, w) v = Relu (u) t = Neg (v) }> (n, go, w)
}"""


def test_row_b_nested_blocks_are_grouped_where_the_node_itself_cannot_be() -> None:
    by_library = parse(LOOP)
    for model, groups in (grouped(LOOP), (by_library, group(by_library, PartitionOptions(deny=("Neg",))))):
        assert outside(model) == ["Loop"]
        assert [ops(found) for found in groups] == [["MatMul", "Relu"]]
        assert names(groups[0].inputs) == ["s", "w"]  # a value of the outer graph is an argument as others are


SCAN = """main (float[5,4] x, float[4,4] w, float[1,4] z) => (float[1,4] f, float[5,1,4] y) {
    f, y = Scan <body = body (float[1,4] s, float[4] e) => (float[1,4] t, float[1,4] o) {
        a = Add (s, e) m = MatMul (a, w) n = Neg (m) t = Softmax (n) o = Mul (t, z) }, num_scan_inputs = 1> (z, x) }"""


def test_row_b_the_body_of_a_scan_is_grouped_where_the_scan_cannot_be() -> None:
    model, groups = grouped(SCAN)
    assert outside(model) == ["Scan"]
    assert ops(groups[0]) == ["Add", "MatMul"]
    assert names(groups[0].inputs) == ["s", "e", "w"]


@pytest.mark.parametrize(("text", "op"), [(LOOP, "Loop"), (SCAN, "Scan")])
def test_row_b_what_a_provider_runs_whole_is_inside_a_group(text: str, op: str) -> None:
    model, groups = grouped(text, deny="")
    assert outside(model) == []
    assert [ops(found) for found in groups] == [[op]]


def test_row_b_what_a_device_lacks_below_a_node_runs_on_the_cpu() -> None:
    """Every session has the CPU provider: a branch or a function may need it, the node itself must not."""
    text = """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (float[N,4] x, float[4,4] w, bool go) => (float[N,4] y) {
            t = MatMul (x, w) u = own.F (t)
            y = If <then_branch = a () => (float[N,4] p) { q = Sin (u) p = MatMul (q, w) },
                    else_branch = b () => (float[N,4] p) { p = Neg (u) }> (go) }
        <domain: "own", opset_import: ["" : 17]> F (a) => (b) { c = Sin (a) b = Exp (c) }"""
    for denied, places in (
        (("Sin@cuda",), [(CUDA, ["MatMul", "F", "If"])]),
        (("Neg@cuda",), [(CUDA, ["MatMul", "F", "If"])]),
        (("Sin",), [(CUDA, ["MatMul"])]),
        (("If@cuda",), [(CUDA, ["MatMul", "F"]), (CPU, ["If"])]),
    ):
        found = partition(parse(text), PartitionOptions(providers=(CUDA,), deny=denied, policy="literal"))[0].clusters
        assert [(one.provider, [node.op_type for node in one.nodes]) for one in found] == places, denied


def test_row_b_lint_at_the_end() -> None:
    model, _ = grouped(f"{WORK} {{ t = MatMul (x, w) u = Neg (t) y = MatMul (u, w) }}")
    again = load(to_bytes(model))  # validates
    assert [found.name for found in groups_of(again)] == ["group_0", "group_1"]
    assert verify(model, again, in_process=True).status == "verified"


def test_row_b_argument_limit_counts_what_a_node_is_given_twice_and_a_group_once() -> None:
    """As the fuser: nodes have all their operands, and what has been fused has each of its inputs once."""

    def count(body: str, limit: int) -> int:
        model = parse(f"main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{ {body} }}")
        options = PartitionOptions(policy="literal", argument_limit=limit)
        return len(partition(model, options)[0].clusters)

    twice = "a = Sum (x, x, x) y = Neg (a)"  # 3 + 1 of a, 1 + 1 of y
    assert [count(twice, limit) for limit in (6, 5)] == [1, 2]
    fused = "a = Sum (x, x) b = Neg (a) c = Neg (b) y = Sum (c, x)"  # b, c, y together: 2 + 1, and a has as many
    assert [count(fused, limit) for limit in (6, 5, 4)] == [1, 2, 3]
    group = "a = Sum (x, x) b = Sum (a, x, x) c = Neg (b) y = Neg (c)"  # c, y: 1 + 1; b: 3 + 1; then 2 + 1; a: 2 + 1
    assert [count(group, limit) for limit in (6, 5)] == [1, 3]
    assert count("a = Sum (x, w, w) y = Neg (a)", 4) == 1  # weights do not count
