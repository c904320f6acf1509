"""What `Lineage` records: where each new node comes from, and what became of each old one."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import Context, GraphTransformer, Lineage, OptimizeResult, RewriteRule, TransformerLevel, optimize
from ortopt.graph.match import inputs
from ortopt.rule import Forwarded
from ortopt.testing import parse

MODEL = """
main (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    i = Identity (x) m = MatMul (i, w) y = Add (m, b) }"""
USED_TWICE = """
main (float[4,2] x) => (float[4,3] y, float[4,3] m) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    m = MatMul (x, w) y = Add (m, b) }"""


def lineage_of(text: str, **options: object) -> tuple[Lineage, OptimizeResult]:
    lineage = Lineage()
    result = optimize(parse(text), observers=[lineage], verify=False, **options)  # type: ignore[arg-type]
    return lineage, result


def told(lineage: Lineage) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Each rewrite: its pass, and the ops before, after and swept."""
    return [
        (
            one.transformer,
            *([lineage.nodes[number].op for number in ids] for ids in (one.before, one.after, one.swept)),
        )
        for one in lineage.rewrites
    ]  # type: ignore[misc]


def test_a_fused_node_is_made_of_those_that_it_stands_for() -> None:
    lineage, result = lineage_of(MODEL)
    assert ("identity_elimination", ["Identity"], [], []) in told(lineage)
    (fused,) = [one for one in lineage.rewrites if one.transformer == "matmul_add_fusion"]
    (row,) = lineage.snapshot(result.model).nodes
    assert fused.after == (row.id,)
    assert sorted(lineage.nodes[number].op for number in fused.before) == ["Add", "MatMul"]
    assert fused.why


def test_what_nothing_needs_any_more_is_swept_with_the_rewrite() -> None:
    lineage, _ = lineage_of(
        """main (float[N,3] x, float[N,3] u) => (float[N,3] y) {
            n = Neg (u) e = Exp (n) s = Shape (e) z = ConstantOfShape (s) y = Add (x, z) }"""
    )
    swept = {name: ops for name, _, _, ops in told(lineage) if ops}
    assert swept == {"pre_shape_node_elimination": ["Exp"], "broadcast_expand_elimination": ["Neg", "Shape"]}


def test_the_original_is_kept_as_it_was_read_with_the_shapes_that_are_inferred() -> None:
    lineage, _ = lineage_of(MODEL)
    assert lineage.original is not None
    assert [row.op for row in lineage.original.nodes] == ["Identity", "MatMul", "Add"]
    shapes = {value.name: value.shape for value in lineage.original.values}
    assert shapes["m"] == "[N, 3]"
    assert {value.name: value.kind for value in lineage.original.values}["w"] == "weight"


def test_an_untouched_node_keeps_its_number() -> None:
    lineage, result = lineage_of("main (float[2] x) => (float[2] y) { y = Relu (x) }")
    assert lineage.original is not None
    assert [row.id for row in lineage.snapshot(result.model).nodes] == [row.id for row in lineage.original.nodes]
    assert lineage.rewrites == []


def test_what_reads_something_else_now_is_changed_and_what_it_read_is_swept() -> None:
    lineage, result = lineage_of(
        """main (float[2] x) => (float[2] y) {
            a = Constant <value = float[2] {1, 2}> () b = Constant <value = float[2] {1, 2}> ()
            c = Max (x, a) y = Min (c, b) }""",
        only=["constant_sharing"],
    )
    assert told(lineage) == [("constant_sharing", ["Min"], ["Min"], ["Constant"])]
    assert len(lineage.snapshot(result.model).nodes) == 3


def test_nodes_that_move_into_a_function_keep_their_numbers() -> None:
    lineage, result = lineage_of(MODEL, level=4, settings={"group_fusion": {"policy": "literal"}})
    known = {number for one in lineage.rewrites for number in one.after}
    rows = lineage.snapshot(result.model).nodes
    assert {row.graph for row in rows} == {0, 1}
    assert {row.id for row in rows if row.op != "Constant"} <= known


class Failing(RewriteRule[Forwarded]):
    """Rewrites one node, and raises at the next."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Sin",)
    enabled = True

    def match(self, root: ir.Node) -> Forwarded:
        if root.name == "bad":
            raise ValueError("broken")
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Cos", [found.value])


def test_rewrites_of_a_pass_that_failed_are_forgotten() -> None:
    model = parse("main (float[2] x) => (float[2] y) { a = Sin (x) y = Sin (a) }")
    model.graph[1].name = "bad"
    lineage = Lineage()
    result = optimize(model, observers=[lineage], transformers=[Failing()], strict=False, level=1, verify=False)
    assert [node.op_type for node in result.model.graph] == ["Sin", "Sin"]
    assert "failing" not in {one.transformer for one in lineage.rewrites}


class WrongNumbers(Failing):
    """Sin becomes Cos, which it is not."""

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])


def test_after_a_repair_only_what_stays_is_told() -> None:
    lineage = Lineage()
    model = parse("main (float[2] x) => (float[2] y) { i = Identity (x) y = Sin (i) }")
    result = optimize(model, observers=[lineage], transformers=[WrongNumbers()])
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong_numbers"]
    assert {one.transformer for one in lineage.rewrites} == {"identity_elimination"}
    assert result.lineage is lineage


class Copying(GraphTransformer):
    """Leave the model as it is, on a copy of it."""

    levels = (TransformerLevel.LEVEL1,)
    bypasses_editor = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if graph[0].doc_string:
            return False
        graph[0].doc_string = "seen"
        return True


def test_nodes_are_found_again_in_a_copy_of_the_model() -> None:
    lineage = Lineage()
    model = parse("main (float[2] x) => (float[2] y) { a = Sin (x) y = Relu (a) }")
    result = optimize(model, observers=[lineage], transformers=[Copying()], level=1, verify=False)
    assert lineage.original is not None
    assert [row.id for row in lineage.snapshot(result.model).nodes] == [row.id for row in lineage.original.nodes]


def test_a_refusal_stands_with_its_node_until_that_is_rewritten() -> None:
    lineage, result = lineage_of(USED_TWICE, level=1)
    numbers = [row.id for row in lineage.snapshot(result.model).nodes]
    reasons: Sequence[tuple[str, int, str]] = lineage.refusals(numbers)
    assert [reason for name, _, reason in reasons if name == "matmul_add_fusion"] == [
        "MatMul's result is used elsewhere (m)"
    ]
    assert lineage.refusals([]) == []
