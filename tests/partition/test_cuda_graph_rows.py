"""Behaviour by behaviour of PyTorch's CUDA graph fuser (CudaFuseGraph, row D), and what each behaviour is on ONNX."""

from __future__ import annotations

from collections import Counter

import pytest

from ortopt.analysis.kernels import CPU, CUDA
from ortopt.api import optimize
from ortopt.graph import scope
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import group, partition
from ortopt.partition.settings import POLICIES, PartitionOptions, Policy
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.partition.grouped_models import WORK, cut, grouped, names, ops, outside


@pytest.mark.parametrize(
    ("policy", "count", "expected"), [("cost", 127, 1), ("cost", 128, 2), ("literal", 125, 1), ("literal", 126, 2)]
)
def test_row_d_argument_limit_of_128(policy: str, count: int, expected: int) -> None:
    """As row B's, by default; the fuser adds up what the Sum and the Relu take and give."""
    inputs = ", ".join(f"float[N] x{i}" for i in range(count))
    text = f"main ({inputs}) => (float[N] y) {{ t = Sum ({', '.join(f'x{i}' for i in range(count))}) y = Relu (t) }}"
    _, groups = grouped(text, policy=policy, numbers=False)
    assert len(groups) == expected


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
        model = parse(text, opset=13)
        cut(model, providers=(CUDA,), policy="literal", deny=tuple(denied.split(",")))
        assert outside(model).count("Split") == splits, denied


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


GEMM = "main (float[2,3] a, float[3,4] b, float[4] c) => (float[2,4] y) { t = Gemm ATTR (a, b, c) y = Relu (t) }"
PLAIN_GEMM = GEMM.replace(" ATTR", "")
CONV = """main (float[1,2,5,5] a, float[3,2,3,3] b) => (float[1,3,3,3] y) <float[3] c = {1,2,3}> {
    t = Conv (a, b, c) y = Relu (t) }"""
CONV_TRANSPOSE = """main (float[1,2,3,3] a, float[2,3,2,2] b) => (float[1,3,4,4] y) <float[3] c = {1,2,3}> {
    t = ConvTranspose (a, b, c) y = Relu (t) }"""
BETWEEN_OTHERS = """main (float[2,3] a, float[3,4] b, float[4] c, float[4,4] w) => (float[2,4] y) {
    t = Gemm (a, b, c) u = Neg (t) y = MatMul (u, w) }"""
SPLIT_OFF = [["Add", "Relu"]]


@pytest.mark.parametrize(
    ("text", "deny", "opset", "groups"),
    [
        (PLAIN_GEMM, "Gemm", 17, SPLIT_OFF),
        (CONV, "Conv", 17, SPLIT_OFF),
        (CONV_TRANSPOSE, "ConvTranspose", 17, SPLIT_OFF),
        (BETWEEN_OTHERS, "Gemm,Neg", 17, [["MatMul"]]),  # it is put back where nothing is gained
        (PLAIN_GEMM, "Gemm,Add", 17, [["Relu"]]),  # and where the addition joins nobody
        (PLAIN_GEMM, "Gemm", 9, [["Relu"]]),  # a Gemm before opset 11 has one
        (GEMM.replace("ATTR", "<beta = 0.5>"), "Gemm", 13, [["Relu"]]),  # scaled, it is more than an addition
    ],
)
def test_row_d_bias_is_split_off_where_neighbours_fuse(
    text: str, deny: str, opset: int, groups: list[list[str]]
) -> None:
    policy = "cost" if text is BETWEEN_OTHERS else "literal"
    model, found = grouped(text, deny=deny, opset=opset, policy=policy)
    ran_elsewhere = deny.replace(",Add", "").split(",")
    assert outside(model) == ran_elsewhere
    assert [ops(one) for one in found] == groups
    (linear,) = [node for node in model.graph if node.op_type == ran_elsewhere[0]]
    assert len(linear.inputs) == (2 if groups is SPLIT_OFF else 3)


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
        verify=False,
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
        verify=False,
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
