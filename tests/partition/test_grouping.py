"""What the two fusers that the partition follows do not say: random nodes, groups that do not pay, devices."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.analysis.kernels import CPU, CUDA
from ortopt.api import optimize
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import group, partition
from ortopt.partition.settings import PartitionOptions, Policy
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.partition.grouped_models import WORK, grouped, ops


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
