"""Constants in other layouts, the work of the search, and what a rewrite tells; the rest are examples."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import optimize
from ortopt.testing import check_rewrites, parse, run

PASS = "transpose_optimizer"

DOWN = "Transpose<perm = [0, 3, 1, 2]>"
BACK = "Transpose<perm = [0, 2, 3, 1]>"


def test_big_constants_are_transposed_when_they_are_written() -> None:
    model = parse(
        f"main (float[1,64,64,128] x, float[1,128,64,64] c) => (float[1,64,64,128] y)"
        f" {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) }}"
    )
    (big,) = (value for value in model.graph.inputs if value.name == "c")
    model.graph.inputs.remove(big)
    big.const_value = ir.tensor(np.arange(128 * 64 * 64, dtype=np.float32).reshape(1, 128, 64, 64), name="c")
    model.graph.initializers.add(big)
    check_rewrites(PASS, model, ops={"Transpose": 0}, numbers=False)
    run(PASS, model)
    (tensor,) = (value.const_value for value in model.graph.initializers.values())
    assert isinstance(tensor, ir.LazyTensor)
    assert tensor.numpy()[0, 1, 2, 3] == 3 * 64 * 64 + 64 + 2


def test_a_constant_that_others_use_may_not_let_the_file_grow() -> None:
    model = parse(
        f"main (float[1,64,64,128] x, float[1,128,64,64] c) => (float[1,64,64,128] y, float[1,128,64,64] z)"
        f" {{ a = {DOWN} (x) b = Mul (a, c) y = {BACK} (b) z = Neg (c) }}"
    )
    (big,) = (value for value in model.graph.inputs if value.name == "c")
    model.graph.inputs.remove(big)
    big.const_value = ir.tensor(np.ones((1, 128, 64, 64), dtype=np.float32), name="c")
    model.graph.initializers.add(big)
    refused = optimize(model, level=1, only=(PASS,), max_growth=1000, verify=False).model
    assert [node.op_type for node in refused.graph].count("Transpose") == 2
    allowed = optimize(model, level=1, only=(PASS,), max_growth=3_000_000, verify=False).model
    assert [node.op_type for node in allowed.graph].count("Transpose") == 0


def test_what_is_left_out_is_not_numbered_again() -> None:
    text = f"main (float[1,4,5,3] x) => (float[1,4,5,3] y) {{ a = {DOWN} (x) b = Relu (a) y = {BACK} (b) }}"
    model = parse(text)
    changed, explanation = run(PASS, model)
    assert changed
    assert len(explanation.rewrites) == 1


def test_the_work_is_linear() -> None:
    """Thousands of blocks, each with transposes of its own: the plans that are made grow as the nodes do."""
    assert _plans(400) <= 2.2 * _plans(200)


def _plans(blocks: int) -> int:
    from ortopt.transpose import region

    statements = ["v0 = Relu (x)"]
    for number in range(blocks):
        statements.append(f"a{number} = {DOWN} (v{number}) b{number} = Relu (a{number}) c{number} = {BACK} (b{number})")
        statements.append(f"v{number + 1} = AveragePool<kernel_shape = [1, 1]> (c{number})")
    model = parse(
        f"main (float[1,2,2,2] x) => (float[1,2,2,2] v{blocks}) {{ {' '.join(statements)} }}",
    )
    count = 0
    grow = region.Region.grow

    def counted(self: region.Region, seeds: object) -> None:
        nonlocal count
        grow(self, seeds)  # type: ignore[arg-type]
        count += len(self.plans) + 1

    region.Region.grow = counted  # type: ignore[method-assign]
    try:
        changed, _ = run(PASS, model)
    finally:
        region.Region.grow = grow  # type: ignore[method-assign]
    assert changed
    assert not any(node.op_type == "Transpose" for node in model.graph)
    return count


def test_provenance_names_what_was_there() -> None:
    model = parse(
        f"main (float[1,4,5,3] x, float[1,3,4,5] c) => (float[1,4,5,3] y)"
        f" {{ a = {DOWN} (x) b = Relu (a) d = Mul (b, c) y = {BACK} (d) }}"
    )
    for node in model.graph:
        node.name = f"old {node.op_type} of {node.outputs[0].name}"
    run(PASS, model)
    origins = {node.op_type: node.meta.get("ortopt.origin") for node in model.graph}
    assert origins["Relu"] == ("old Relu of b",)
    assert set(origins["Transpose"]) == {"old Transpose of a", "old Transpose of y"}
