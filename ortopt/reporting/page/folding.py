"""Groups that fold a graph: modules, blocks that repeat, and parts of what remains large."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ortopt.graph.module_scopes import Path

MAX_CHILDREN: Final = 48
"""How many nodes and groups a group shows when it is unfolded; more become blocks and parts."""

PART: Final = 24
"""How many children a part has, where nothing better divides a large group."""

MIN_ALIKE: Final = 3
"""How many groups of the same contents are put together."""

MIN_BLOCK: Final = 4
"""How many nodes a block has that repeats."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group.

    Attributes:
        parent: Position of the group around it; -1 for the whole model, which comes first.
        label: Its name for people.
        alike: How many groups of the same contents it holds; 0 where it is none of such.
    """

    parent: int
    label: str
    alike: int = 0


@dataclass(slots=True)
class Folding:
    """How a graph folds.

    Attributes:
        groups: The groups, each after the one around it.
        of: Position of the group of each node, by id.
    """

    groups: list[Group] = field(default_factory=list)
    of: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Tree:
    """A group under construction; its children are ids of nodes and groups, in order."""

    label: str
    children: list[int | _Tree] = field(default_factory=list)
    inner: dict[str, _Tree] = field(default_factory=dict)
    alike: int = 0
    signature: int | None = None


def fold(paths: Mapping[int, Path], ops: Mapping[int, str], readers: Mapping[int, int]) -> Folding:
    """Fold a graph.

    Args:
        paths: The modules around each node, by id, in the order of the graph.
        ops: The op of each node, by id.
        readers: Of nodes without operands, a node that reads them: they stand where that stands.
    """
    root = _Tree("")
    for number, path in paths.items():
        if number in readers:
            continue
        at = root
        for part in path:
            if part not in at.inner:
                at.inner[part] = _Tree(part)
                at.children.append(at.inner[part])
            at = at.inner[part]
        at.children.append(number)
    _simplify(root)
    _put_alike_together(root, ops)
    _divide(root, ops)
    folding = _numbered(root)
    for number, reader in readers.items():
        folding.of[number] = folding.of.get(reader, 0)
    return folding


def _simplify(tree: _Tree) -> None:
    """Let go of groups that hold one thing only."""
    children: list[int | _Tree] = []
    for child in tree.children:
        if isinstance(child, int):
            children.append(child)
            continue
        _simplify(child)
        only = child.children[0] if len(child.children) == 1 else None
        if isinstance(only, _Tree):
            only.label = f"{child.label}/{only.label}"
        children.append(child if only is None else only)
    tree.children = children


def _signature(tree: _Tree, ops: Mapping[int, str]) -> int:
    """The same for groups that hold the same ops."""
    if tree.signature is None:
        counts = Counter(ops[child] if isinstance(child, int) else _signature(child, ops) for child in tree.children)
        tree.signature = hash(frozenset(counts.items()))
    return tree.signature


def _size(tree: _Tree) -> int:
    return sum(1 if isinstance(child, int) else _size(child) for child in tree.children)


def _put_alike_together(tree: _Tree, ops: Mapping[int, str]) -> None:
    """Put neighbouring groups of the same contents, the layers of a network, into one."""
    groups = [child for child in tree.children if isinstance(child, _Tree)]
    for group in groups:
        _put_alike_together(group, ops)
    if len(groups) <= MIN_ALIKE:
        return
    children: list[int | _Tree] = []
    run: list[_Tree] = []
    for child in (*tree.children, None):
        if isinstance(child, _Tree) and _size(child) >= MIN_BLOCK:
            if run and _signature(run[-1], ops) != _signature(child, ops):
                children += _together(run)
                run = []
            run.append(child)
            continue
        children += _together(run)
        run = []
        if child is not None:
            children.append(child)
    tree.children = children


def _together(run: list[_Tree]) -> list[_Tree]:
    if len(run) < MIN_ALIKE:
        return list(run)
    together = _Tree(f"{run[0].label} … {run[-1].label}", [*run], alike=len(run))
    return [together]


def _divide(tree: _Tree, ops: Mapping[int, str]) -> None:
    """Divide what is large: first into blocks that repeat, then into parts."""
    if len(tree.children) > MAX_CHILDREN and not tree.alike:
        tree.children = _blocks(tree.children, ops)
    if len(tree.children) > MAX_CHILDREN and any(isinstance(child, _Tree) for child in tree.children):
        tree.children = _loose_parts(tree.children)
    while len(tree.children) > MAX_CHILDREN:
        tree.children = _parts(tree.children)
    for child in tree.children:
        if isinstance(child, _Tree):
            _divide(child, ops)


def _blocks(children: list[int | _Tree], ops: Mapping[int, str]) -> list[int | _Tree]:
    """Find sequences of ops that repeat, by putting the pair together that is most frequent, as Re-Pair does."""
    names: dict[str | int, int] = {}
    symbols = [
        names.setdefault(ops[child] if isinstance(child, int) else _signature(child, ops), len(names))
        for child in children
    ]
    items: list[list[int | _Tree]] = [[child] for child in children]
    following = len(names)
    while True:
        pairs = Counter(
            (a, b)
            for (a, b), left, right in zip(itertools.pairwise(symbols), items, items[1:], strict=False)
            if len(left) + len(right) <= MAX_CHILDREN
        )
        best, count = max(pairs.items(), key=lambda item: (item[1], -item[0][0], -item[0][1]), default=((0, 0), 0))
        if count < MIN_ALIKE:
            break
        symbols, items = _paired(symbols, items, best, following)
        following += 1
    totals = Counter(symbols)
    result: list[int | _Tree] = []
    seen: Counter[int] = Counter()
    for symbol, item in zip(symbols, items, strict=True):
        if len(item) < MIN_BLOCK:
            result += item
            continue
        seen[symbol] += 1
        of = f" {seen[symbol]} of {totals[symbol]}" if totals[symbol] > 1 else ""
        result.append(_Tree(f"{_first_op(item, ops)} block{of}", item))
    return result


def _paired(
    symbols: list[int], items: list[list[int | _Tree]], pair: tuple[int, int], new: int
) -> tuple[list[int], list[list[int | _Tree]]]:
    out: list[int] = []
    joined: list[list[int | _Tree]] = []
    at = 0
    while at < len(symbols):
        if tuple(symbols[at : at + 2]) == pair and len(items[at]) + len(items[at + 1]) <= MAX_CHILDREN:
            out.append(new)
            joined.append(items[at] + items[at + 1])
            at += 2
        else:
            out.append(symbols[at])
            joined.append(items[at])
            at += 1
    return out, joined


def _first_op(item: Iterable[int | _Tree], ops: Mapping[int, str]) -> str:
    """The op that a block is called by: its heaviest, by name."""
    own = [ops[child].rpartition("::")[2] for child in item if isinstance(child, int)]
    heavy = [op for op in own if any(word in op for word in ("Conv", "MatMul", "Gemm", "Attention", "LSTM", "GRU"))]
    return next(iter(heavy or own), "")


def _loose_parts(children: list[int | _Tree]) -> list[int | _Tree]:
    """Put neighbouring nodes together, and keep the groups between them."""
    divided: list[int | _Tree] = []
    count = 0
    for loose, run in itertools.groupby(children, lambda child: isinstance(child, int)):
        own = list(run)
        if not loose or len(own) < MIN_BLOCK:
            divided += own
            continue
        for start in range(0, len(own), PART):
            count += 1
            divided.append(_Tree(f"part {count}", own[start : start + PART]))
    return divided


def _parts(children: list[int | _Tree]) -> list[int | _Tree]:
    parts: list[int | _Tree] = []
    for start in range(0, len(children), PART):
        own = children[start : start + PART]
        parts.append(_Tree(f"part {start // PART + 1}", own) if len(own) > 1 else own[0])
    return parts


def _numbered(root: _Tree) -> Folding:
    folding = Folding([Group(-1, root.label)])
    pending = [(root, 0)]
    while pending:
        tree, position = pending.pop()
        for child in tree.children:
            if isinstance(child, int):
                folding.of[child] = position
                continue
            folding.groups.append(Group(position, child.label, child.alike))
            pending.append((child, len(folding.groups) - 1))
    return folding
