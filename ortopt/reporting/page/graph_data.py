"""The graphs of a page as data: two snapshots, what became of each node, and the groups that fold them.

Groups are modules, blocks that repeat, and parts of what remains large.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ortopt.graph.module_scopes import Path
from ortopt.instrumentation.graph_snapshot import GraphSnapshot
from ortopt.instrumentation.lineage import KnownNode, RecordedRewrite
from ortopt.instrumentation.module_paths import paths, paths_of_new

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


def describe_graphs(
    before: GraphSnapshot | None,
    after: GraphSnapshot,
    nodes: Sequence[KnownNode],
    rewrites: Sequence[RecordedRewrite],
    changed: Iterable[int] = (),
) -> dict[str, Any]:
    """Both graphs, as data that json can write.

    Args:
        before: The original; None where there is none to show.
        after: The result.
        nodes: Every node of both and those between, by id.
        rewrites: What made the one of the other.
        changed: Ids of nodes that are in both, and differ.
    """
    first = before or after
    around = paths(first)
    readers = _readers(first)
    folding = fold(around, {row.id: row.op for row in first.nodes}, readers)
    if before is not None:
        modules = _group_of_each_module(folding, {one: path for one, path in around.items() if one not in readers})
        _place(after, folding, paths_of_new(after, around), modules, _origins(rewrites))
    ops = list(dict.fromkeys(node.op for node in nodes))
    graphs = list(dict.fromkeys(node.graph for node in nodes))
    op_at, graph_at = ({text: at for at, text in enumerate(texts)} for texts in (ops, graphs))
    return {
        "ops": ops,
        "graphs": graphs,
        "nodes": [
            [op_at[node.op], node.name, graph_at[node.graph], folding.of.get(number, -1)]
            for number, node in enumerate(nodes)
        ],
        "groups": [[group.parent, group.label, group.alike] for group in folding.groups],
        "before": None if before is None else _plain(before),
        "after": _plain(after),
        "changed": sorted(set(changed)),
    }


def _plain(snapshot: GraphSnapshot) -> dict[str, Any]:
    return {
        "nodes": [[row.id, row.inputs, row.outputs, row.attributes, row.metadata] for row in snapshot.nodes],
        "values": [[row.name, row.type, row.shape, row.kind, row.producer] for row in snapshot.values],
        "inputs": snapshot.inputs,
        "outputs": snapshot.outputs,
    }


def _readers(snapshot: GraphSnapshot) -> dict[int, int]:
    """Of nodes that depend on weights alone, a node that reads them and depends on more."""
    alone = {row.id for row in snapshot.nodes if all(_is_weight(snapshot, position) for position in row.inputs)}
    readers: dict[int, int] = {}
    for row in snapshot.nodes:
        for position in row.inputs if row.id not in alone else ():
            if position >= 0 and (producer := snapshot.values[position].producer) in alone:
                readers.setdefault(producer, row.id)
    return readers


def _is_weight(snapshot: GraphSnapshot, position: int) -> bool:
    return position < 0 or snapshot.values[position].kind == "weight"


def _origins(rewrites: Iterable[RecordedRewrite]) -> dict[int, tuple[int, ...]]:
    """The nodes that each new one stands for, by id; of several rewrites, the first."""
    origins: dict[int, tuple[int, ...]] = {}
    for rewrite in rewrites:
        for number in rewrite.after:
            if number not in rewrite.before:
                origins.setdefault(number, rewrite.before)
    return origins


def _place(
    after: GraphSnapshot,
    folding: Folding,
    told: Mapping[int, tuple[Path, ...]],
    modules: Mapping[Path, int],
    origins: Mapping[int, tuple[int, ...]],
) -> None:
    """Put new nodes into the modules that their names tell, else where those stood that they stand for."""
    readers = _readers(after)
    for number, paths_ in told.items():
        group = next((modules[path] for whole in paths_ for path in _outwards(whole) if path in modules), None)
        if group is not None and number not in readers:
            folding.of.setdefault(number, group)
    for row in after.nodes:
        if row.id not in folding.of and row.id not in readers:
            _place_one(row.id, folding, origins)
    for number, reader in readers.items():
        folding.of.setdefault(number, folding.of.get(reader, 0))
    for row in after.nodes:
        folding.of.setdefault(row.id, 0)


def _group_of_each_module(folding: Folding, around: Mapping[int, Path]) -> dict[Path, int]:
    """The innermost group that holds all nodes of a module."""
    groups: dict[Path, list[int]] = {}
    for number, path in around.items():
        line = _ancestors(folding.of[number], folding)
        for module in _outwards(path):
            shared = groups.get(module)
            if shared is None:
                groups[module] = line
            else:
                length = next((at for at, (a, b) in enumerate(zip(shared, line, strict=False)) if a != b), len(shared))
                groups[module] = shared[: min(length, len(line))]
    return {(): 0} | {module: line[-1] for module, line in groups.items()}


def _outwards(path: Path) -> Iterator[Path]:
    """A module, and those around it; the whole model counts for none of those."""
    yield path
    for depth in range(len(path) - 1, 0, -1):
        yield path[:depth]


def _place_one(number: int, folding: Folding, origins: Mapping[int, tuple[int, ...]]) -> None:
    """Give a node its group, and first those that it comes from."""
    pending, entered = [number], set()
    while pending:
        current = pending[-1]
        unplaced = [one for one in origins.get(current, ()) if one not in folding.of and one not in entered]
        if current in folding.of or not unplaced:
            pending.pop()
            around = [folding.of[one] for one in origins.get(current, ()) if one in folding.of]
            folding.of.setdefault(current, _around(around, folding))
            continue
        entered.update(unplaced)
        pending += unplaced


def _around(groups: Sequence[int], folding: Folding) -> int:
    """The innermost group that holds more than half of them; the last one's where that is the whole model."""
    counts = Counter(one for group in groups for one in _ancestors(group, folding))
    holding = [group for group, count in counts.items() if group and 2 * count > len(groups)]
    return max(holding, key=lambda group: len(_ancestors(group, folding)), default=groups[-1] if groups else 0)


def _ancestors(group: int, folding: Folding) -> list[int]:
    line = []
    while group >= 0:
        line.append(group)
        group = folding.groups[group].parent
    return line[::-1]
