"""Rows of one op, of any op that can stand in one: no question about what is behind a value may take for ever.

``python -m fuzzing.chains`` optimizes rows of 26, 600 and 1,500 nodes of each op: *chains*, whose nodes read the one
before and inputs, and *diamonds*, whose nodes read the one before at every place, and
*ladders* of pairs, whose nodes both read the pair before. Each runs in a process of its own;
one that raises, or takes longer than its limit, is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

LENGTHS = (26, 600, 1_500)
KINDS = ("chain", "diamond", "ladder")
SECONDS = 60.0
"""What a row may take, with the start of a process: those that end take a few seconds."""

OPSET = 17
SIZE = 4
_TYPES = (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64)
_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "Cast": {"to": TensorProto.FLOAT},
    "LRN": {"size": 1},
    "Einsum": {"equation": "ij,jk->ik"},
}


def ops() -> Iterator[tuple[str, int]]:
    """The ops that give what they read, a matrix of the same type and size."""
    for name in sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}):
        fitting = (kind for kind in _TYPES if _is_one(name, kind))
        if (kind := next(fitting, None)) is not None:
            yield name, kind


def _is_one(op: str, kind: int) -> bool:
    """Whether a node of an op takes matrices of a type alone, and gives one."""
    try:
        model = row(op, kind, "diamond", 2)
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception:  # whatever it is that the op wants
        return False
    given = {value.name: value.type.tensor_type for value in inferred.graph.value_info}.get("v0")
    if given is None or given.elem_type != kind:
        return False
    return [dim.dim_value for dim in given.shape.dim] == [SIZE, SIZE]


def row(op: str, kind: int, form: str, length: int) -> onnx.ModelProto:
    """A model of one row.

    Args:
        op: The op.
        kind: The element type.
        form: One of `KINDS`.
        length: The number of nodes.
    """
    schema = onnx.defs.get_schema(op, OPSET)
    count = max(schema.min_input, min(2, schema.max_input))
    nodes: list[onnx.NodeProto] = []
    left, right = "x", "x1" if count > 1 else "x"
    while len(nodes) < length:
        more = [f"x{other}" for other in range(1, count)]
        reads = {"chain": [[left, *more]], "diamond": [[left] * count]}
        pair = [[left, *[right] * count], [right, *[left] * count]]
        made = [
            helper.make_node(op, read[:count], [f"v{len(nodes) + place}"], **_ATTRIBUTES.get(op, {}))
            for place, read in enumerate(reads.get(form, pair))
        ]
        nodes += made
        left, right = made[0].output[0], made[-1].output[0]
    at = left
    if form == "ladder" and count > 1:
        at = "end"
        nodes.append(helper.make_node(op, [left, *[right] * count][:count], [at], **_ATTRIBUTES.get(op, {})))
    nodes.append(helper.make_node("Identity", [at], ["y"]))
    names = ["x", *(f"x{other}" for other in range(1, count) if form != "diamond")]
    inputs = [helper.make_tensor_value_info(name, kind, (SIZE, SIZE)) for name in names]
    graph = helper.make_graph(nodes, "row", inputs, [helper.make_tensor_value_info("y", kind, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def outcome(op: str, kind: int, form: str, length: int, seconds: float, level: int = 3) -> str:
    """What optimizing a row ends with: nothing, or what went wrong."""
    code = f"import sys; from ortopt import optimize; optimize(sys.stdin.buffer.read(), level={level}, verify=False)"
    content = row(op, kind, form, length).SerializeToString()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], input=content, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done after {seconds:g} s"
    return done.stderr.decode(errors="replace").strip().rpartition("\n")[2] if done.returncode else ""


def main() -> None:
    """Read the command line, try all rows, print those that go wrong."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.chains", description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="names by commas; all that can stand in a row if empty")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="numbers of nodes by commas")
    parser.add_argument("--limit", type=float, default=SECONDS, help=f"seconds for each row (default {SECONDS:g})")
    options = parser.parse_args()
    wanted = set(filter(None, options.ops.split(",")))
    tried, wrong = 0, 0
    for op, kind in ops():
        if wanted and op not in wanted:
            continue
        for form in KINDS:
            for length in map(int, options.lengths.split(",")):
                found = outcome(op, kind, form, length, options.limit)
                tried += 1
                wrong += bool(found)
                if found:
                    print(f"{form} of {length} {op}: {found}", flush=True)
    print(f"{tried} rows, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
