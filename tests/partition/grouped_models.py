"""Models cut into groups, and what tests ask of them.

A denied op (``Neg`` in most tests) stands for what no provider runs: ONNX Runtime itself runs the grouped model all the
same, so that every test compares the numbers.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from ortopt import registry
from ortopt.options import Options
from ortopt.partition.groups import Group, groups_of
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites
from ortopt.verification.verify import verify


def grouped(
    text: str, *, options: Options | None = None, opset: int = 17, numbers: bool = True, **settings: object
) -> tuple[ir.Model, list[Group]]:
    """Run the pass on a model; numbers and a second run are checked."""
    fusion = registry.installed().find("group_fusion")(**{"deny": "Neg", **settings})
    model = check_rewrites(fusion, text, opset=opset, options=options, numbers=numbers)
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))
    return model, groups_of(model)


def cut(model: ir.Model, *, in_process: bool = True, **options: Any) -> list[Group]:
    """Cut a model into groups, and check that it gives the same numbers.

    Args:
        model: The model; it is changed.
        in_process: Whether this process may run it.
        options: `PartitionOptions`.
    """
    original = load(model)
    groups = group(model, PartitionOptions(**options))
    outcome = verify(original, model, in_process=in_process)
    assert outcome.status == "verified", outcome.reason
    return groups


def ops(found: Group) -> list[str]:
    return [node.op_type for node in found.nodes if node.op_type != "Constant"]


def names(values: tuple[ir.Value, ...]) -> list[str | None]:
    return [value.name for value in values]


def outside(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.domain != "ortopt.group" and node.op_type != "Constant"]


WORK = "main (float[N,4] x, float[4,4] w) => (float[N,4] y)"
"""A header for bodies whose MatMul makes a group worth its session."""
