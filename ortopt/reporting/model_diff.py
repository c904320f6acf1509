"""How two models differ: nodes by op, inputs and outputs, header, weights. As data, and as tables."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.onnx_ir_internals import initializers_of
from ortopt.optimization.result import figures
from ortopt.reporting.report import size
from ortopt.reporting.tables import table
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA: Final = 1

MAX_ROWS: Final = 20
"""How many weights of a kind are shown; the data has all."""


def compare(first: ir.Model, second: ir.Model, a: str, b: str) -> dict[str, Any]:
    """How two models differ, as data that json can write.

    Args:
        first: The first model.
        second: The second.
        a: The first, as the user named it.
        b: The second.
    """
    before, after = figures(first), figures(second)
    ops = sorted({*before.ops, *after.ops})
    by_op = {op: {"before": before.ops.get(op, 0), "after": after.ops.get(op, 0)} for op in ops}
    return {
        "schema": SCHEMA,
        "a": a,
        "b": b,
        "nodes": {"before": before.nodes, "after": after.nodes, "by_op": by_op},
        "interface": [
            *_values("input", first.graph.inputs, second.graph.inputs),
            *_values("output", first.graph.outputs, second.graph.outputs),
        ],
        "header": list(_header(first, second)),
        "weights": _weights(first, second),
    }


def _values(what: str, first: Iterable[ir.Value], second: Iterable[ir.Value]) -> Iterator[dict[str, Any]]:
    own, other = ({value.name or "": _type(value) for value in values} for values in (first, second))
    for name in dict.fromkeys((*own, *other)):
        a, b = own.get(name), other.get(name)
        if a != b:
            kind = "only in B" if a is None else "only in A" if b is None else "another type"
            yield {"what": f"{what} {name}", "kind": kind, "a": a, "b": b}
    if own.keys() == other.keys() and list(own) != list(other):
        yield {"what": f"{what}s", "kind": "another order", "a": ", ".join(own), "b": ", ".join(other)}


def _type(value: ir.Value) -> str:
    shape = "" if value.shape is None else str(list(_dims(value.shape))).replace("'", "")
    if value.type is None:
        return f"unknown{shape}"
    plain = isinstance(value.type, ir.TensorType)
    return f"{value.type.dtype.name.lower() if plain else value.type}{shape}"


def _dims(shape: ir.Shape) -> Iterator[int | str]:
    for dim in shape.dims:
        yield dim if isinstance(dim, int) else dim.value or "?"


def _header(first: ir.Model, second: ir.Model) -> Iterator[dict[str, Any]]:
    for what, a, b in (
        ("IR version", {"": first.ir_version}, {"": second.ir_version}),
        ("opset", first.opset_imports, second.opset_imports),
        ("function", _functions(first), _functions(second)),
        ("metadata", first.metadata_props, second.metadata_props),
    ):
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key):
                name = f"{what} {key or ('ai.onnx' if what == 'opset' else '')}".strip()
                texts = [None if one.get(key) is None else str(one[key]) for one in (a, b)]
                kind = "only in B" if texts[0] is None else "only in A" if texts[1] is None else "another value"
                yield {"what": name, "kind": kind, "a": texts[0], "b": texts[1]}


def _functions(model: ir.Model) -> dict[str, str]:
    return {
        f"{one.domain}::{one.name}": f"{sum(1 for graph in scope.below(one.graph) for _ in graph)} nodes"
        for one in model.functions.values()
    }


def _weights(first: ir.Model, second: ir.Model) -> dict[str, Any]:
    """Weights by name, and those of other names by what they hold."""
    own, other = _tensors(first), _tensors(second)
    both = [name for name in own if name in other]
    same = [name for name in both if _digest(own[name]) == _digest(other[name])]
    changed = [name for name in both if name not in set(same)]
    removed = [name for name in own if name not in other]
    added: dict[bytes, list[str]] = defaultdict(list)
    for name in other:
        if name not in own:
            added[_digest(other[name])].append(name)
    renamed = []
    for name in removed:
        if twins := added.get(_digest(own[name])):
            twins.pop(0)
            renamed.append(name)
    left = {name for names in added.values() for name in names}
    moved = set(renamed)
    return {
        "same": len(same),
        "renamed": len(renamed),
        "changed": [_weight(name, other[name]) for name in changed],
        "removed": [_weight(name, own[name]) for name in removed if name not in moved],
        "added": [_weight(name, other[name]) for name in other if name in left],
    }


def _tensors(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The initializers of all graphs; of several with one name, the first."""
    found: dict[str, ir.TensorProtocol] = {}
    for graph in scope.graphs(model):
        for name, value in initializers_of(graph).items():
            if value.const_value is not None:
                found.setdefault(name, value.const_value)
    return found


def _weight(name: str, tensor: ir.TensorProtocol) -> dict[str, Any]:
    shape = ", ".join(map(str, tensor.shape.dims))
    return {"name": name, "type": f"{tensor.dtype.name.lower()}[{shape}]", "bytes": tensor.nbytes}


def _digest(tensor: ir.TensorProtocol) -> bytes:
    """The same for tensors of one type, one shape and the same elements."""
    sha = hashlib.sha256(f"{tensor.dtype} {tensor.shape}".encode())
    if tensor.dtype == ir.DataType.STRING:
        sha.update(repr(tensor.numpy().tolist()).encode())
    else:
        sha.update(tensor.tobytes())
    return sha.digest()


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print how two models differ.

    Args:
        data: From `compare`.
        out: The console to print to.
    """
    nodes, weights = data["nodes"], data["weights"]
    out.print(f"{nodes['before']} nodes in A, {nodes['after']} in B", soft_wrap=True)
    differing = {op: counts for op, counts in nodes["by_op"].items() if counts["before"] != counts["after"]}
    if differing:
        ranked = sorted(differing.items(), key=lambda item: (-abs(item[1]["after"] - item[1]["before"]), item[0]))
        rows = ((op, n["before"], n["after"], f"{n['after'] - n['before']:+d}") for op, n in ranked)
        out.print()
        out.print(table(("op", "A", "B", "change"), rows))
    for title, key in (("inputs and outputs", "interface"), ("header", "header")):
        out.print()
        if data[key]:
            cells = ((row["what"], row["kind"], row["a"] or "", row["b"] or "") for row in data[key])
            out.print(table((title, "", "A", "B"), cells, text=4))
        else:
            out.print(f"{title}: the same")
    out.print()
    out.print(f"weights: {weights['same']} the same, {weights['renamed']} renamed", soft_wrap=True)
    for title, key in (("changed", "changed"), ("only in A", "removed"), ("only in B", "added")):
        _show_weights(title, weights[key], out)


def _show_weights(title: str, rows: list[dict[str, Any]], out: Console) -> None:
    if not rows:
        return
    out.print(f"  {title}: {len(rows)}, {size(sum(row['bytes'] for row in rows))}")
    for row in rows[:MAX_ROWS]:
        out.print(f"    {one_line(row['name'])} {row['type']}", soft_wrap=True)
    if len(rows) > MAX_ROWS:
        out.print(f"    {len(rows) - MAX_ROWS} more (all of them with --json)")
