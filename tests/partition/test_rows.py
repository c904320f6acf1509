"""Behaviour by behaviour, the two fusers that the partition follows, and what each behaviour is on ONNX.

Row letters: B is ONNX Runtime's lazy-tensor fuser (OrtFuser), D is PyTorch's CUDA graph fuser (CudaFuseGraph). A denied
op (``Neg`` in most tests) stands for what no provider runs: ONNX Runtime itself runs the grouped model all the same, so
that every test compares the numbers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt import registry
from ortopt.analysis.kernels import CPU, CUDA, Support
from ortopt.api import optimize
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.partition.groups import Group, groups_of
from ortopt.partition.partitioning import group, partition
from ortopt.partition.settings import POLICIES, PartitionOptions, Policy
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse
from ortopt.verification.verify import verify


def grouped(
    text: str, *, options: Options | None = None, opset: int = 17, numbers: bool = True, **settings: object
) -> tuple[ir.Model, list[Group]]:
    """Run the pass on a model; numbers and a second run are checked."""
    fusion = registry.installed().find("group_fusion")(**{"deny": "Neg", **settings})
    model = check_rewrites(fusion, text, opset=opset, options=options, numbers=numbers)
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))
    return model, groups_of(model)


def ops(found: Group) -> list[str]:
    return [node.op_type for node in found.nodes if node.op_type != "Constant"]


def names(values: tuple[ir.Value, ...]) -> list[str | None]:
    return [value.name for value in values]


def outside(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.domain != "ortopt.group" and node.op_type != "Constant"]


WORK = "main (float[N,4] x, float[4,4] w) => (float[N,4] y)"
"""A header for bodies whose MatMul makes a group worth its session."""


# -- B: the lazy-tensor fuser -----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("policy", "count", "expected"), [("cost", 127, 1), ("cost", 128, 2), ("literal", 125, 1), ("literal", 126, 2)]
)
def test_row_d_argument_limit_of_128(policy: str, count: int, expected: int) -> None:
    """As row B's, by default; the fuser adds up what the Sum and the Relu take and give."""
    inputs = ", ".join(f"float[N] x{i}" for i in range(count))
    text = f"main ({inputs}) => (float[N] y) {{ t = Sum ({', '.join(f'x{i}' for i in range(count))}) y = Relu (t) }}"
    _, groups = grouped(text, policy=policy, numbers=False)
    assert len(groups) == expected


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


def test_row_b_a_loop_that_a_provider_runs_whole_is_inside_a_group() -> None:
    model, groups = grouped(LOOP, deny="")
    assert outside(model) == []
    assert [ops(found) for found in groups] == [["Loop"]]


SCAN = """main (float[5,4] x, float[4,4] w, float[1,4] z) => (float[1,4] f, float[5,1,4] y) {
    f, y = Scan <body = body (float[1,4] s, float[4] e) => (float[1,4] t, float[1,4] o) {
        a = Add (s, e) m = MatMul (a, w) n = Neg (m) t = Softmax (n) o = Mul (t, z) }, num_scan_inputs = 1> (z, x) }"""


def test_row_b_the_body_of_a_scan_is_grouped_where_the_scan_cannot_be() -> None:
    model, groups = grouped(SCAN)
    assert outside(model) == ["Scan"]
    assert ops(groups[0]) == ["Add", "MatMul"]
    assert names(groups[0].inputs) == ["s", "e", "w"]
    _, (whole,) = grouped(SCAN, deny="")
    assert ops(whole) == ["Scan"]


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


# -- D: the CUDA graph fuser ------------------------------------------------------------------------------------------


def test_row_d_vertical_then_horizontal_fusion() -> None:
    text = (
        "main (float[N] x, float[N] n) => (float[N] y, float[N] z, float[N] q) { y = Exp (x) z = Sin (x) q = Neg (n) }"
    )
    heavy = text.replace("Exp (x)", "Softmax (x)").replace("Sin (x)", "Softmax <axis = 0> (x)")
    options = {"allow": "Softmax", "deny": ""}
    _, groups = grouped(heavy.replace("N]", "4000000]"), numbers=False, **options)
    assert len(groups) == 1
    _, groups = grouped(heavy.replace("N]", "4000000]"), numbers=False, horizontal=False, **options)
    assert len(groups) == 2


SPLIT = """main (float[N,6] x, {operand} b, float[6] w) => (float[N,3] y, float[N,3] z) {{
    t = Exp (x) s = {op} (t, b) p, q = Split <axis = {axis}> (s) y = Relu (p) z = Tanh (q) }}"""


@pytest.mark.parametrize(
    ("operand", "op", "axis", "splits"),
    [
        ("float[N,6]", "Add", 1, 2),
        ("float[N,6]", "Sub", -1, 2),
        ("float[6]", "Mul", 1, 2),
        ("float[1]", "Mul", 1, 1),
        ("float[N,1]", "Div", -1, 1),
        ("float", "Pow", 1, 1),
    ],
)
def test_row_d_split_moves_above_pointwise_ops(operand: str, op: str, axis: int, splits: int) -> None:
    model, groups = grouped(
        SPLIT.format(operand=operand, op=op, axis=axis), opset=13, deny="Split,Exp", policy="literal"
    )
    assert Counter(outside(model)) == {"Exp": 1, "Split": splits}
    assert sorted(sorted(ops(found)) for found in groups) == sorted([sorted([op, "Relu"]), sorted([op, "Tanh"])])


def test_row_d_split_moves_above_several_ops() -> None:
    model, groups = grouped(
        """main (float[N,6] x) => (float[N,3] y, float[N,3] z) {
        t = Exp (x) s = Sin (t) r = Cos (s) p, q = Split <axis = 1> (r) y = Relu (p) z = Tanh (q) }""",
        opset=13,
        deny="Split,Exp",
        policy="literal",
    )
    assert Counter(outside(model)) == {"Exp": 1, "Split": 1}
    assert sorted(map(len, map(ops, groups))) == [3, 3]


@pytest.mark.parametrize(
    ("operand", "old", "new"),
    [
        ("float[N,K]", "", ""),  # the operand may be broadcast along the axis
        ("float[N,6]", "float[N,3] z)", "float[N,3] z, float[N,6] s)"),  # the value is used elsewhere
        ("float[N,6]", "y = Relu (p) z = Tanh (q)", "y = Neg (p) z = Neg (q)"),  # nobody gains
    ],
)
def test_row_d_split_stays_where_no_group_would_grow(operand: str, old: str, new: str) -> None:
    text = SPLIT.format(operand=operand, op="Add", axis=1)
    model, _ = grouped(text.replace(old, new), opset=13, deny="Split,Exp,Neg", policy="literal")
    assert outside(model).count("Split") == 1


def test_row_d_split_is_put_back_where_nothing_is_gained() -> None:
    """The op can join none of its readers: they run elsewhere."""
    text = SPLIT.format(operand="float[N,6]", op="Add", axis=1)
    for denied, splits in (("Split,Exp,Relu@cuda,Tanh@cuda", 1), ("Split,Exp,Relu@cuda", 2), ("Split,Exp", 2)):
        options = PartitionOptions(providers=(CUDA,), policy="literal", deny=tuple(denied.split(",")))
        model = parse(text, opset=13)
        original = load(model)
        group(model, options)
        assert outside(model).count("Split") == splits, denied
        assert verify(original, model, in_process=True).status == "verified"


def test_row_d_outputs_used_only_in_size_are_computed_from_the_inputs_shapes() -> None:
    model, groups = grouped(
        """main (float[N,M] x, float[K,M] w, float[P] n) => (int64[2] y, int64 z, float[P] q) {
        t = MatMul (x, v) v = Transpose (w) y = Shape (t) z = Size (t) q = Neg (n) }""".replace(
            "t = MatMul (x, v) v = Transpose (w)", "v = Transpose (w) t = MatMul (x, v)"
        ),
        deny="Neg,Shape,Size",
    )
    assert "MatMul" not in [*outside(model), *(op for found in groups for op in ops(found))]  # nobody needs the product
    assert outside(model).count("Shape") == 2


def test_row_d_size_expressions_are_computed() -> None:
    _, groups = grouped(
        """main (float[1,2,H,W] x, float[2,2,3,3] k, float[N] n) => (int64[4] y, float[N] q, float[1,2,P,Q] z) {
        t = Conv <strides = [2,2]> (x, k) y = Shape (t) u = Relu (t) z = Relu (u) q = Neg (n) }""",
        deny="Neg,Shape",
    )
    found = groups[0]
    assert names(found.outputs) == ["z"]
    assert "Conv" in ops(found)


def test_row_d_sizes_of_a_scalar_are_computed() -> None:
    model, (found,) = grouped(
        """main (float[N,4] x, float[4,4] w) => (int64[0] y, int64 z, float[N,4] q) {
        t = MatMul (x, w) s = ReduceSum <keepdims = 0> (t) y = Shape (s) z = Size (s) q = Relu (t) }""",
        deny="Shape,Size",
    )
    assert "s" not in names(found.outputs)
    assert not {"Shape", "Size"} & set(outside(model))


def test_row_d_sizes_are_seen_at_inputs_that_are_still_there() -> None:
    """The first value that shows N has gone, for what needed it had a shape of constants."""
    model, _ = grouped(
        """main (float[M,4] v, float[N,4] x, float[N,4] z, float[4,4] w) => (int64[2] e, int64[1] s, int64[2] y)
        <int64[1] first = {0}> {
        o = Neg (v) p = MatMul (o, w) e = Shape (p)
        n = Neg (x) a = MatMul (n, w) r = ReduceSum <keepdims = 0> (a, first) s = Shape (r)
        m = Neg (z) b = MatMul (m, w) y = Shape (b) }""",
        deny="Neg,Shape",
    )
    assert "MatMul" not in {node.op_type for graph in scope.below(model.graph) for node in graph}
    seen = [value.name for node in model.graph for value in node.inputs if node.op_type == "Shape" and value]
    assert seen == ["o", "m"]


def test_row_d_an_op_of_the_callers_that_is_called_shape_wants_more_than_that() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]> main (float[N,4] x, float[4,4] w) => (int64[2] y) {
        t = MatMul (x, w) u = Relu (t) y = own.Shape (u) }"""
    )
    (found,) = group(model)
    assert names(found.outputs) == ["u"]
    assert outside(model) == ["Shape"]


def test_row_d_sizes_wanted_in_two_branches_are_computed_in_each() -> None:
    """What one branch computes the other does not see."""
    branch = "{ s = Shape (t) q = Gather (s, one) }"
    _, groups = grouped(
        f"""main (float[N,M] x, float[M,K] w, bool go) => (float[N,K] y, int64 z) <int64 one = {{1}}> {{
        t = MatMul (x, w) u = Relu (t) y = Neg (u)
        z = If <then_branch = a () => (int64 q) {branch}, else_branch = b () => (int64 q) {branch}> (go) }}""",
        deny="Neg,Shape,Gather",
    )
    assert [names(found.outputs) for found in groups] == [["u"]]


def test_row_d_a_size_wanted_inside_the_group_only_is_left_alone() -> None:
    _, (found,) = grouped(
        f"""{WORK.replace("=> (", "=> (int64[2] z, ").replace("w)", "w, bool go)")} {{
        t = MatMul (x, w)
        z = If <then_branch = a () => (int64[2] s) {{ s = Shape (t) }},
                else_branch = b () => (int64[2] r) {{ o = Shape (t) r = Mul (o, o) }}> (go)
        y = Relu (t) }}"""
    )
    assert ops(found) == ["MatMul", "If", "Relu"]
    held = [node.op_type for graph in scope.nested(found.nodes[-2]) for node in graph]
    assert held == ["Shape", "Shape", "Mul"]


def test_row_d_a_size_that_depends_on_data_keeps_its_output() -> None:
    _, (found,) = grouped(
        """main (float[N,4] x, float[P] n) => (int64[2] y, int64[2,M] z, float[P] q) {
        t = NonZero (x) y = Shape (t) z = Abs (t) q = Neg (n) }""",
        deny="Neg,Shape",
        policy="literal",
    )
    assert "t" in names(found.outputs)


def test_row_d_outputs_used_only_in_dtype_disappear() -> None:
    model, (found,) = grouped(
        """main (float[N,4] x, float[4,4] w, int64[M] i) => (float[N,4] y, float[M] z) {
        t = MatMul (x, w) y = Relu (t) z = CastLike (i, t) }""",
        deny="CastLike,Cast",
    )
    assert names(found.outputs) == ["y"]
    assert outside(model) == ["Cast"]


def test_row_d_guards_belong_to_the_runtime() -> None:
    """A group carries its guard as metadata; comparing arguments with it is the runtime's part."""
    model, (found,) = grouped(f"{WORK} {{ t = MatMul (x, w) y = Relu (t) }}")
    assert found.guard is None
    found.function.metadata_props["ortopt.guard"] = '{"x": [2, 4]}'
    assert groups_of(load(to_bytes(model)))[0].guard == {"x": [2, 4]}


@pytest.mark.parametrize(
    ("text", "op"),
    [
        (
            "main (float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { t = Gemm (a, b, c) y = Relu (t) }",
            "Gemm",
        ),
        (
            "main (float[1,2,5,5] a, float[3,2,3,3] b) => (float[1,3,3,3] y) <float[3] c = {1,2,3}>"
            "{ t = Conv (a, b, c) y = Relu (t) }",
            "Conv",
        ),
        (
            "main (float[1,2,3,3] a, float[2,3,2,2] b) => (float[1,3,4,4] y) <float[3] c = {1,2,3}>"
            "{ t = ConvTranspose (a, b, c) y = Relu (t) }",
            "ConvTranspose",
        ),
    ],
)
def test_row_d_bias_is_split_off_so_that_neighbours_fuse(text: str, op: str) -> None:
    model, (found,) = grouped(text, deny=op, policy="literal")
    assert outside(model) == [op]
    assert ops(found) == ["Add", "Relu"]
    (bare,) = [node for node in model.graph if node.op_type == op]
    assert len(bare.inputs) == 2


def test_row_d_bias_is_put_back_where_nothing_is_gained() -> None:
    model, groups = grouped(
        """main (float[2,3] a, float[3,4] b, float[4] c, float[4,4] w) => (float[2,4] y)
        { t = Gemm (a, b, c) u = Neg (t) y = MatMul (u, w) }""",
        deny="Gemm,Neg",
    )
    assert outside(model) == ["Gemm", "Neg"]
    (gemm,) = [node for node in model.graph if node.op_type == "Gemm"]
    assert len(gemm.inputs) == 3
    assert [ops(found) for found in groups] == [["MatMul"]]


def test_row_d_a_bias_that_cannot_be_left_out_stays() -> None:
    """A Gemm before opset 11 has one, and one that is scaled is more than an addition."""
    text = "main (float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { t = Gemm ATTR (a, b, c) y = Relu (t) }"
    for attribute, opset in (("", 9), ("<beta = 0.5>", 13)):
        model, (found,) = grouped(text.replace("ATTR", attribute), deny="Gemm", policy="literal", opset=opset)
        assert outside(model) == ["Gemm"]
        assert ops(found) == ["Relu"]


def test_row_d_bias_is_put_back_where_the_addition_joins_nobody() -> None:
    text = "main (float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { t = Gemm (a, b, c) y = Relu (t) }"
    model, _ = grouped(text, deny="Gemm,Add", policy="literal")
    assert outside(model) == ["Gemm"]


VIEWS = ["Reshape (t, s)", "Flatten (t)", "Squeeze (t, ax)", "Unsqueeze (t, ax)"]


@pytest.mark.parametrize("view", VIEWS)
def test_row_d_views_are_free_inside_and_stay_outside_at_the_edge(view: str) -> None:
    """A view between two nodes of a group is in it; one that meets the host is the host's."""
    constants = {"s": "<int64[2] s = {1, -1}>", "ax": "<int64[1] ax = {0}>"}.get(view[-3:-1].strip(), "")
    shape = "float[1,1,8]"
    text = f"""main ({shape} x, {shape} n) => (float o, {shape} m) {constants} {{
        a = Softmax (x) r = {view.replace("(t", "(a")} b = Softmax (r) t = Neg (b) v = {view} q = Softmax (v)
        o = ReduceSum <keepdims = 0> (q) m = Neg (n) }}"""
    model, groups = grouped(
        text, policy="cost", allow="Softmax,ReduceSum,Reshape,Flatten,Squeeze,Unsqueeze", deny="Neg"
    )
    kind = view.split(maxsplit=1)[0]
    inside = [kind in ops(found) for found in groups]
    assert outside(model).count(kind) == 1
    assert inside.count(True) == 1


def test_row_d_views_are_never_a_groups_only_content() -> None:
    model = parse(
        """main (float[N,4] x) => (float[4,M] y) <int64[2] s = {4, -1}, int64[2] r = {2, -1}>
        { t = Neg (x) u = Reshape (t, r) v = Reshape (u, s) y = Neg (v) }"""
    )
    for policy in POLICIES:
        assert group(model, PartitionOptions(deny=("Neg",), policy=policy)) == []


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("provider", [CPU, CUDA])
def test_row_d_a_single_view_is_no_group(view: str, policy: Policy, provider: str) -> None:
    constants = {"s": "<int64[2] s = {1, -1}>", "ax": "<int64[1] ax = {0}>"}.get(view[-3:-1].strip(), "")
    model = parse(f"main (float[1,1,8] x) => (float o) {constants} {{ t = Neg (x) v = {view} o = ReduceSum (v) }}")
    found = partition(model, PartitionOptions(providers=(provider,), policy=policy, deny=("Neg", "ReduceSum")))[0]
    assert found.clusters == ()
    assert len(found.outside) == 3


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


def test_row_d_removing_inplace_operations_has_nothing_to_do_and_sequences_are_grouped_by_kernel() -> None:
    """ONNX is functional: nothing is in place. Sequences are in groups of the CPU provider, which has their kernels."""
    text = """main (float[N,4] x, float[4,4] w) => (float[K,4] y) {
        t = MatMul (x, w) u = Relu (t) s = SequenceConstruct (t, u) y = ConcatFromSequence <axis = 0> (s) }"""
    _, (found,) = grouped(text)
    assert found.provider == CPU
    assert "SequenceConstruct" in ops(found)
    model = parse(text)
    found = partition(model, PartitionOptions(providers=(CUDA,)))[0].clusters
    assert all(
        cluster.provider == CPU for cluster in found for node in cluster.nodes if node.op_type == "SequenceConstruct"
    )


def test_row_d_outputs_that_nobody_needs_are_dropped() -> None:
    _, (found,) = grouped("main (float[N,4] x) => (float[N,2] y) <int64[1] k = {2}> { y, i = TopK (x, k) }", deny="")
    assert names(found.outputs) == ["y"]


def test_row_d_what_a_device_cannot_return_is_computed_on_the_cpu() -> None:
    """Tensors of strings, sequences and optionals: all that is no tensor of numbers, whatever the op."""
    text = """main (string[N] s, float[N] x) => (string[N] t, seq(float[N]) q, float[N] y, optional(float[N]) o) {
        t = Identity (s) y = Exp (x) q = SequenceConstruct (x, y) o = Optional (y) }"""
    (found,) = partition(
        parse(text, 18), PartitionOptions(providers=(CUDA,), policy="literal", predicate=lambda *_: True)
    )
    places = {node.op_type: one.provider for one in found.clusters for node in one.nodes}
    assert places == {"Exp": CUDA, "Identity": CPU, "SequenceConstruct": CPU, "Optional": CPU}


def test_row_d_nested_views_collapse() -> None:
    result = optimize(
        parse(
            """main (float[N,4] x, float[4,4] w) => (float[M] y) <int64[2] s = {4, -1}, int64[1] r = {-1}>
            { t = MatMul (x, w) u = Reshape (t, s) v = Reshape (u, r) y = Relu (v) }"""
        ),
        level=4,
    )
    (found,) = groups_of(result.model)
    assert Counter(ops(found))["Reshape"] == 1


def test_row_d_shape_arithmetic_is_simplified() -> None:
    """No-op broadcasts go, inputs are taken once, chains are composed: by ortopt's own passes, before and in groups."""
    result = optimize(
        parse(
            """main (float[N,4] x, float[N,4] z) => (float[N,4] y) {
            s = Shape (x) e = Expand (x, s) t = Add (e, x) u = Softmax (t) y = Add (u, z) }"""
        ),
        level=4,
    )
    (found,) = groups_of(result.model)
    assert "Expand" not in ops(found)
    assert names(found.inputs) == ["x", "z"]


def test_row_d_blocks_in_blocks() -> None:
    _, groups = grouped(
        """main (float[2,2] w, bool go) => (float[2,2] y) {
        y = If <then_branch = a () => (float[2,2] p) {
            p = If <then_branch = c () => (float[2,2] r) { q = MatMul (w, w) r = Neg (q) },
                    else_branch = d () => (float[2,2] r) { r = Neg (w) }> (go) },
          else_branch = b () => (float[2,2] p) { o = MatMul (w, w) p = Neg (o) }> (go) }"""
    )
    assert [ops(found) for found in groups] == [["MatMul"], ["MatMul"]]
    assert len({found.name for found in groups}) == 2


# -- design: what the two fusers do not say ---------------------------------------------------------------------------


def test_random_nodes_stay_in_one_group_in_order() -> None:
    text = """main (float[N,4] x) => (float[N,4] y, float[N,4] z) {
        a = RandomNormalLike (x) b = Neg (x) c = RandomUniformLike (x) y = Add (a, b) z = Mul (c, a) }"""
    for policy in ("cost", "literal"):
        model = parse(text)
        groups = group(model, PartitionOptions(deny=("Neg",), policy=policy))  # type: ignore[arg-type]
        drawing = [found for found in groups if any(op.startswith("Random") for op in ops(found))]
        assert len(drawing) == 1
        assert [op for op in ops(drawing[0]) if op.startswith("Random")] == ["RandomNormalLike", "RandomUniformLike"]


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_random_nodes_that_have_nothing_else_in_common_are_in_one_group(policy: str) -> None:
    model = parse(
        """main (float[N] x, float[M] w) => (float[N] y, float[M] z, float[N] n) {
        y = RandomNormalLike (x) z = RandomUniformLike (w) n = Neg (x) }"""
    )
    (found,) = group(model, PartitionOptions(deny=("Neg",), policy=policy))  # type: ignore[arg-type]
    assert ops(found) == ["RandomNormalLike", "RandomUniformLike"]


def test_random_nodes_with_the_host_between_them_stay_apart() -> None:
    model = parse("main (float[N] x) => (float[N] y) { a = RandomNormalLike (x) b = Neg (a) y = RandomNormalLike (b) }")
    assert all(len(found.nodes) == 1 for found in group(model, PartitionOptions(deny=("Neg",), policy="literal")))


DROPOUTS = """main (float[N] x, float[N] u) => (float[N] z, float[N] c, float[N] f) <float r = {0.5}, bool t = {1}> {
    a = Dropout (x, r, t) b = Neg (a) z = Dropout (b, r, t) c = Dropout (x, r, t) d = Neg (c) e = Dropout (u, r, t)
    f = com.microsoft.BiasGelu (d, e) }"""


def drawn(model: ir.Model) -> list[str | None]:
    """Results of the nodes that draw random numbers, in the order in which a grouped model has them."""
    bodies = {found.call: found.nodes for found in groups_of(model)}
    nodes = [inner for node in model.graph for inner in bodies.get(node, (node,))]
    return [node.outputs[0].name for node in nodes if node.op_type == "Dropout" or node.op_type.startswith("Random")]


@pytest.mark.parametrize("limit", [1, 3, 128])
@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_random_nodes_that_stay_apart_keep_their_order(policy: Policy, limit: int) -> None:
    """Of one generator, what each draws depends on what was drawn before, however little else they have in common."""
    model = parse(DROPOUTS)
    found = group(model, PartitionOptions(deny=("Neg",), policy=policy, argument_limit=limit))
    if policy == "literal":
        assert sum(ops(one).count("Dropout") for one in found) == 4
    assert drawn(model) == ["a", "z", "c", "e"]


def test_random_nodes_keep_their_order_around_a_nested_graph_that_draws() -> None:
    branch = "{ i = Neg (x) j = Dropout (i, r, t) }"
    model = parse(
        f"""main (float[N] x, bool go) => (float[N] a, float[N] y, float[N] c) <float r = {{0.5}}, bool t = {{1}}> {{
        a = Dropout (x, r, t)
        y = If <then_branch = p () => (float[N] j) {branch}, else_branch = q () => (float[N] j) {branch}> (go)
        c = Dropout (x, r, t) }}"""
    )
    groups = group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    assert [ops(found) for found in groups] == [["Dropout"]] * 4
    main = [node.outputs[0].name for node in model.graph]
    assert main.index("a") < main.index("y") < main.index("c")


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_random_nodes_take_what_lies_between_them_to_their_provider(policy: Policy) -> None:
    text = """main (float[N,4] x, float[4,4] w) => (float[N,4] y, float[N,4] z) <float one = {1}> {
        a = RandomNormalLike (x) c = Clip (a, "", one) b = MatMul (c, w) y = RandomNormalLike (b) z = MatMul (y, w) }"""
    options = PartitionOptions(providers=(CUDA,), policy=policy, deny=("RandomNormalLike@cuda",))
    (found,) = partition(parse(text), options)
    first, second = found.clusters
    assert (first.provider, [node.op_type for node in first.nodes]) == (
        CPU,
        ["RandomNormalLike", "Clip", "MatMul", "RandomNormalLike"],
    )
    assert (second.provider, [node.op_type for node in second.nodes]) == (CUDA, ["MatMul"])


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_a_random_node_that_no_provider_runs_keeps_its_place_among_the_others(policy: Policy) -> None:
    """In no group, it is ONNX Runtime's all the same where there is a kernel for it."""
    text = """main (float[N] x) => (float[N] y, float[N] n, float[N] z, float[N] q) {
        y = RandomNormalLike (x) n = RandomUniformLike (x) z = RandomNormalLike (x) q = RandomNormalLike (x) }"""
    model = parse(text)
    assert group(model, PartitionOptions(deny=("RandomUniformLike",), policy=policy))
    assert drawn(model) == ["y", "n", "z", "q"]


def test_groups_that_do_not_pay_stay_outside_and_heavy_ones_do_not() -> None:
    light, _ = f"{WORK} {{ t = Neg (x) u = Relu (t) y = Neg (u) }}", None
    assert group(parse(light), PartitionOptions(deny=("Neg",))) == []
    assert len(group(parse(light.replace("Relu (t)", "MatMul (t, w)")), PartitionOptions(deny=("Neg",)))) == 1


def test_what_the_host_does_not_know_is_grouped_however_small() -> None:
    model = parse("main (float[N] x) => (float[N] y) { t = Neg (x) u = com.microsoft.QuickGelu (t) y = Neg (u) }")
    (found,) = group(model, PartitionOptions(deny=("Neg",)))
    assert ops(found) == ["QuickGelu"]


def test_devices_change_as_seldom_as_they_can() -> None:
    """Two branches, each on both devices: one after the other would change three times, side by side once."""
    text = """main (float[N,4] x, float[4,4] w) => (float[N,4] y, float[N,4] z) {
        a = MatMul (x, w) b = Det2 (a) c = MatMul (x, w) d = Det2 (c) y = Identity (b) z = Identity (d) }"""
    model = parse(text.replace("Det2", "NonMax").replace("NonMax", "Softmax"))
    found = partition(model, PartitionOptions(providers=(CUDA,), deny=("Softmax@cuda", "Identity@cuda")))[0]
    assert [cluster.provider for cluster in found.clusters] == [CUDA, CPU]


def test_light_islands_run_where_their_neighbours_run() -> None:
    text = f"{WORK} {{ t = MatMul (x, w) u = Relu (t) y = MatMul (u, w) }}"
    found = partition(parse(text), PartitionOptions(providers=(CUDA,), deny=("MatMul@cuda",)))[0]
    assert [cluster.provider for cluster in found.clusters] == [CPU]  # Relu has a CUDA kernel, but two copies cost more


def test_groups_are_numbered_in_topological_order() -> None:
    _, groups = grouped(f"{WORK} {{ t = MatMul (x, w) u = Neg (t) v = MatMul (u, w) q = Neg (v) y = MatMul (q, w) }}")
    assert [found.name for found in groups] == ["group_0", "group_1", "group_2"]


def test_a_rewrite_that_is_not_wanted_leaves_its_nodes_outside() -> None:
    result = optimize(
        parse(f"{WORK} {{ t = MatMul (x, w) u = Neg (t) y = MatMul (u, w) }}"),
        passes="group_fusion{deny=Neg}",
        level=4,
        limit=1,
    )
    assert len(groups_of(result.model)) == 1
    assert Counter(node.op_type for node in result.model.graph) == {"group_0": 1, "Neg": 1, "MatMul": 1}


def test_the_partition_is_data() -> None:
    model = parse(f"{WORK} {{ t = MatMul (x, w) u = Neg (t) y = MatMul (u, w) }}")
    before = to_bytes(model)
    (found,) = partition(model, PartitionOptions(deny=("Neg",)))
    assert [len(cluster.nodes) for cluster in found.clusters] == [1, 1]
    assert [node.op_type for node in found.outside] == ["Neg"]
    assert to_bytes(model) == before


def test_large_constant_nodes_become_weights() -> None:
    content = ir.Tensor(np.arange(600, dtype=np.float32), name="c")
    model = parse("main (float[600] x) => (float[600] y) { y = Relu (x) }")
    (relu,) = model.graph
    node = ir.node("Constant", [], attributes={"value": content})
    add = ir.node("Add", [relu.inputs[0], node.outputs[0]])
    model.graph.insert_before(relu, [node, add])
    relu.replace_input_with(0, add.outputs[0])
    model = load(model)
    (found,) = group(model)
    assert len(found.weight_inputs) == 1
    assert found.weight_inputs[0].is_initializer()


def test_groups_of_a_plain_model_are_none() -> None:
    assert groups_of(parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")) == []
