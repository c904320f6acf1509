"""The rule for names of new nodes, asked of a whole model: each by the names of the nodes that it stands for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import onnx_ir as ir

from ortopt.graph.provenance import ORIGIN_KEY

SUFFIX = 6
"""Characters that make a name unique: a number."""


def nodes_of(model: ir.Model) -> Iterator[ir.Node]:
    for top in (model.graph, *(function.graph for function in model.functions.values())):
        yield from top.all_nodes()


def label(node: ir.Node) -> str:
    """What an origin is recorded as: by its name, else its first result's."""
    return node.name or next((value.name for value in node.outputs if value.name), node.op_type)


def check_new_names(original: ir.Model, result: ir.Model) -> int:
    """Check the names of a result's new nodes and of their values; how many there are."""
    known = {label(node) for node in nodes_of(original)}
    values = {value.name for node in nodes_of(original) for value in node.outputs}
    nodes = list(nodes_of(result))
    bearers = Counter(node.name for node in nodes)
    new = [node for node in nodes if label(node) not in known]
    for node in new:
        assert node.name
        assert bearers[node.name] == 1, f"{node.name} is the name of several nodes"
        assert ORIGIN_KEY in node.meta, f"nothing says what {node.name} stands for"
        assert known.issuperset(node.meta[ORIGIN_KEY])
        check_name(node.name, node.op_type, node.meta[ORIGIN_KEY])
        for value in node.outputs if node.op_type != "Constant" else ():  # which may copy another constant, by its name
            own = re.fullmatch(rf"{re.escape(node.name)}_output(_\d+)?", value.name or "")
            assert not value.name or own or value.name in values, f"{value.name} is the name of no value of {node.name}"
    return len(new)


def check_name(name: str, op: str, origins: tuple[str, ...]) -> None:
    """Check a new node's name."""
    *scope, last = name.split("/")
    around = [origin.split("/")[:-1] for origin in origins if "/" in origin]
    assert all(one[: len(scope)] == scope for one in around), f"{name} is in no scope of all of {origins}"
    deeper = {tuple(one[: len(scope) + 1]) for one in around}
    is_deepest = len(deeper) != 1 or len(next(iter(deeper))) == len(scope) or next(iter(deeper))[-1] == unnumbered(last)
    assert is_deepest, f"{name} is not in the deepest scope of {origins}"
    ends = {op, *(unnumbered(origin.rpartition("/")[2]) for origin in origins if len(origins) == 1)}
    assert last == op or unnumbered(last) in {unnumbered(end) for end in ends}, (
        f"{name} ends neither with {op} nor as {origins}"
    )
    repeated = [a for a, b in pairwise(name.split("/")) if a == b]
    assert all(any(f"{a}/{a}" in origin for origin in origins) for a in repeated), f"{name} says something twice"
    assert len(name) <= max(map(len, origins)) + len(f"/{op}") + SUFFIX


def unnumbered(name: str) -> str:
    return re.sub(r"(?<=.)_\d+$", "", name)
