"""One attention block: ``softmax(scale · q · kᵀ + bias) · v``, split into heads and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt import ops
from ortopt.graph.match import Dim, Refusal, dtype, inputs, is_op, need, need_present, same_dim, users
from ortopt.patterns.attention import bias as biases
from ortopt.patterns.attention.bias import Bias
from ortopt.patterns.attention.contraction import Contraction, contraction
from ortopt.patterns.attention.guard import check_nothing_else_is_guarded
from ortopt.patterns.attention.heads import Heads, Operand, Roles, cheapest, heads_from, operand
from ortopt.patterns.attention.scores import Kind, Scores, leads_to_softmax, scores
from ortopt.patterns.attention.sizes import NonemptyBatch
from ortopt.views.axes import Axis, Group, View, all_above, all_below, leaves, size_of
from ortopt.views.layouts import Plan, build

_MAX_READERS = 256


class Past(Struct, frozen=True):
    """Keys and values of earlier positions, put before the new ones.

    Attributes:
        key: The past keys, [batch, heads, past length, size].
        value: The past values, [batch, heads, past length, size of a value's head].
        present_key: The past and new keys together, as the block computes them.
        present_value: The past and new values together.
    """

    key: ir.Value
    value: ir.Value
    present_key: ir.Value
    present_value: ir.Value


@dataclass(frozen=True, slots=True)
class Result:
    """What a block gives, as far as it is followed.

    Attributes:
        views: The result of the last product, and what others make of its shape and order, each of the one before.
        nodes: The nodes that make them, each with the value of `views` after it.
        roles: Which axis is what.
    """

    views: tuple[View, ...]
    nodes: tuple[ir.Node, ...]
    roles: Roles
    _plans: dict[tuple[Group, ...], tuple[int, Plan]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def best(self, layout: tuple[Group, ...]) -> tuple[int, Plan]:
        """Which value is made with the least work from one in a layout, and how.

        Raises:
            Refusal: If none can be.
        """
        if layout not in self._plans:
            last = len(self.views) - 1
            backwards, made = cheapest((View(view.value, layout), view.groups) for view in reversed(self.views))
            self._plans[layout] = last - backwards, made
        return self._plans[layout]


class Attention(Struct, frozen=True):
    """What a block computes.

    Attributes:
        core: The nodes from the product of queries and keys to that of probabilities and values.
        queries: The query heads.
        keys: The key heads, without what a group repeats, and without the past.
        values: The value heads, likewise.
        read_keys: The key heads as the product with the queries reads them.
        read_values: The value heads as the product with the probabilities reads them.
        scale: What the products of queries and keys are multiplied by.
        bias: What is added to the scores, or None.
        scores: The dimensions of the scores: [batch, heads, length of the queries, length of the keys].
        guarded: Whether NaNs among the probabilities are set to 0.
        past: The past, if there is one.
        result: What the block gives, as far as it is followed.
        cap: Where the scaled scores are bent before anything is added: ``cap · tanh(x / cap)``; 0 is nowhere.
        keys_first: Whether `keys` and `values` are read with their heads first, and queries side by side.
        by_head: What the queries of each head are multiplied by beside `scale`; empty for nothing.
        causal: Whether no query sees a later key, which `bias` does not say.
        finite: Whether this holds for finite numbers only: a NaN of a past key, of which nothing says that the value at
            its position is NaN, too, is set to 0 among the probabilities.
    """

    core: tuple[ir.Node, ...]
    queries: Heads
    keys: Heads
    values: Heads
    read_keys: Heads
    read_values: Heads
    scale: float
    bias: Bias | None
    scores: tuple[Dim, ...]
    guarded: bool
    past: Past | None
    result: Result
    cap: float = 0.0
    keys_first: bool = False
    by_head: tuple[float, ...] = ()
    causal: bool = False
    finite: bool = False

    @property
    def flat(self) -> bool:
        """Whether the operands can be had, and the result is wanted, with the heads side by side in each position.

        Positions may move with all their heads, where they stand before the batch.
        """
        parts = (self.queries, self.keys, self.values)
        if not (self.keys_first or all(part.is_flat for part in parts)):
            return False
        try:
            _, made = self.result.best(self.result.roles.merged)
        except Refusal:
            return False
        return made.perm is None or made.together >= self.queries.count * self.values.size

    def as_read(self) -> Attention:
        """The block with keys and values as the products read them: with the past, and repeated for groups."""
        return structs.replace(self, keys=self.read_keys, values=self.read_values, past=None, keys_first=True)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that go."""
        place, _ = self.result.best(self._layout)
        return (*self.core, *self.result.nodes[:place])

    @property
    def _layout(self) -> tuple[Group, ...]:
        return self.result.roles.merged if self.flat or self.keys_first else self.result.roles.columns

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The values that the block gives."""
        place, _ = self.result.best(self._layout)
        result = self.result.views[place].value
        return (result,) if self.past is None else (result, self.past.present_key, self.past.present_value)

    def give(self, value: ir.Value) -> dict[ir.Value, ir.Value]:
        """The value that the block gives, and what stands for it.

        Args:
            value: The result, side by side where the block is flat or reads its keys heads first, else heads first.
        """
        place, made = self.result.best(self._layout)
        return {self.result.views[place].value: build(structs.replace(made, view=View(value, made.view.parts)))}


def attention(root: ir.Node, *, assumes_nonempty: bool = False) -> Attention:
    """The block whose product of probabilities and values is a MatMul or an Einsum.

    Args:
        root: The product.
        assumes_nonempty: Whether it is proven only for inputs that are not empty: with a batch, and a position of it.

    Raises:
        Refusal: If it is none, or computes something else.
    """
    softmax = any(leads_to_softmax(value) for value in root.inputs if value is not None)
    need_present(softmax, "no Softmax comes before", root.inputs[0])
    batch = NonemptyBatch(root)
    product = contraction(root, batch.dims)
    need(product.factor == 1, "the product of probabilities and values is scaled", root)
    if not leads_to_softmax(product.left):
        need_present(leads_to_softmax(product.right), "no Softmax comes before", product.left)
        product = product.swapped()
    axes = {letter: Axis(size) for letter, size in product.sizes.items()}
    queries, keys, size = _roles_of(product, axes)
    for value, letters in ((product.left, product.left_letters), (product.right, product.right_letters)):
        for letter, dim in zip(letters, batch.dims(value), strict=True):
            if letter != " ":
                axes[letter].learn(dim)
    found = scores(View(product.left, _parts(product.left_letters, axes)), queries, keys, batch)
    values = View(product.right, _parts(product.right_letters, axes))
    return _Block(root, product, axes, found, values, queries, keys, size).attention(assumes_nonempty=assumes_nonempty)


def _roles_of(product: Contraction, axes: dict[str, Axis]) -> tuple[Axis, Axis, Axis]:
    """The axes of queries and keys, and that of a value's head."""
    left, right, result = (
        text.replace(" ", "") for text in (product.left_letters, product.right_letters, product.letters)
    )
    contracted = [letter for letter in left if letter not in result]
    own = [letter for letter in left if letter in result and letter not in right]
    new = [letter for letter in right if letter not in left]
    need(len(contracted) == len(new) == 1 and bool(own), "it is no product of probabilities and values", product.node)
    return axes[own[-1]], axes[contracted[0]], axes[new[0]]


def _parts(letters: str, axes: dict[str, Axis]) -> tuple[Group, ...]:
    return tuple(() if letter == " " else (axes[letter],) for letter in letters)


class _Block:
    """What is known of a block while it is put together."""

    def __init__(
        self, root: ir.Node, product: Contraction, axes: dict[str, Axis], found: Scores, values: View,
        queries: Axis, keys: Axis, size: Axis,
    ) -> None:  # fmt: skip
        self.root, self.found, self.batch = root, found, found.batch
        self.outer_queries, self.outer_keys, self.value_size = queries, keys, size
        self._take_heads_from_queries()
        result = View(root.outputs[0], _parts(product.letters, axes))
        self.views, self.tail = all_below(result, self.batch.shape_of)
        self._read_product(values)

    def _take_heads_from_queries(self) -> None:
        """Tell heads from positions where the products have both in one dimension, as those that share one key do."""
        parts = self.outer_queries.leaves()
        found = self.found
        assert found.softmax is not None
        if len(parts) > 1 and found.queries is self.outer_queries and (parts[-1],) in found.softmax.groups:
            self.outer_queries = found.queries = parts[-1]

    def _read_product(self, values: View) -> None:
        """Take queries and keys from the product of them."""
        found = self.found
        product = contraction(found.view.value.producer(), self.batch.dims)
        groups = dict(zip(product.letters, found.view.parts, strict=True))
        if not self._reads_queries_first(product, groups):
            product = product.swapped()
            need(self._reads_queries_first(product, groups), "the scores are no product", found.view.value)
        summed = [letter for letter in product.left_letters if letter not in product.letters and letter != " "]
        need(len(summed) == 1, "the product of queries and keys is over no single axis", product.node)
        self.size = Axis(product.sizes[summed[0]])
        groups[summed[0]] = (self.size,)
        for value, letters in ((product.left, product.left_letters), (product.right, product.right_letters)):
            self.size.learn(self.batch.dims(value)[letters.index(summed[0])])
        found.nodes.append(product.node)
        shared = self._shared()
        self.queries = operand(product.left, _groups(product.left_letters, groups), shared, self.batch, scaled=True)
        self.keys = operand(product.right, _groups(product.right_letters, groups), shared, self.batch, scaled=True)
        self.values = operand(values.value, values.parts, shared, self.batch, scaled=False)
        self.product = product

    def _reads_queries_first(self, product: Contraction, groups: dict[str, Group]) -> bool:
        """Whether the first operand has the axis of queries for itself, and the second that of keys."""
        own = [letter for letter in product.left_letters if letter not in product.right_letters]
        other = [letter for letter in product.right_letters if letter not in product.left_letters]
        pairs = ((self.found.queries, own), (self.found.keys, other))
        return all(set(leaves((axis,))) <= set(_of("".join(letters), groups)) for axis, letters in pairs)

    def attention(self, *, assumes_nonempty: bool) -> Attention:
        """The block, checked."""
        found = self.found
        scale = found.scale * self.product.factor * self.queries.scale * self.keys.scale
        need(scale > 0, "the scale is not positive", self.product.node.outputs[0])
        batch, heads = self._split()
        self._check_lengths()
        queries = self._heads(self.queries.views, batch, heads, found.queries, self.size)
        need(queries.count == size_of(heads), "the queries are broadcast to more heads", self.root)
        read_keys, keys = self._both(self.keys, batch, heads, found.keys, self.size)
        read_values, values = self._both(self.values, batch, heads, self.outer_keys, self.value_size)
        if keys.count != values.count:  # one of both is repeated in a way that is not followed
            keys, values = read_keys, read_values
        need(keys.count == values.count, "keys and values have different numbers of heads", self.root)
        bias = self._bias(batch, heads, dtype(self.queries.views[0].value))
        if bias is not None:
            bias.check_full(queries, read_keys)
        new_keys, new_values, past = _before(keys, values, self.batch)
        appended = _concatenated(keys, self.batch) is not None
        if assumes_nonempty and bias is not None:
            bias = biases.cut(bias, self.outer_keys, self.batch)
        used = [*queries.values, *new_keys.values, *new_values.values, *(() if bias is None else bias.values)]
        if past is not None and not (_has_all(bias, new_keys) and _is_read_by_none(past, used, found.nodes)):
            new_keys, new_values, past = keys, values, None
        kinds = {dtype(part.views[0].value) for part in (queries, new_keys, new_values)}
        need(len(kinds) == 1, "queries, keys and values are of different types", self.root)
        hiding = found.guarded or any(step.kind is Kind.FILLED for step in found.steps)
        if hiding:
            check_nothing_else_is_guarded(
                [part.views[-1].value for part in (queries, new_keys, new_values)], self.views[-1].value
            )
        roles = Roles(batch, self.outer_queries, heads, self.value_size)
        shape = (size_of(batch), size_of(heads), self.outer_queries.size, self.outer_keys.size)
        result = Result(tuple(self.views), tuple(self.tail), roles)
        return Attention(
            (self.root, *found.nodes), queries, new_keys, new_values, read_keys, read_values, scale, bias, shape,
            found.guarded, past, result, found.cap, by_head=self._by_head(heads),
            finite=hiding and appended,
        )  # fmt: skip

    def _by_head(self, heads: Group) -> tuple[float, ...]:
        """What the queries of each head are multiplied by; nothing where all are alike."""
        if self.found.by_head is None:
            return ()
        group, numbers = self.found.by_head
        need(leaves(group) == leaves(heads), "the factors are not for heads", self.root)
        return numbers

    def _shared(self) -> Group:
        """The axes that the scores have beside queries and keys."""
        assert self.found.softmax is not None
        own = leaves((self.outer_queries, self.outer_keys))
        return tuple(one for one in self.found.softmax.axes if one not in own)

    def _split(self) -> tuple[Group, Group]:
        """The axes of the batch, and those of heads."""
        shared = self._shared()
        places = [*range(len(shared) - 1, -1, -1), len(shared)]
        known = [place for place in places if all(isinstance(one.size, int) for one in shared[place:])]
        fitting = [self._fitting(shared[:place], shared[place:]) for place in known]
        if max(fitting):
            ends = self._ends_of_dimensions(shared)
            place = max(zip(fitting, (place in ends for place in known), known, strict=True), key=lambda one: one[:2])[
                2
            ]
        else:
            place = len(shared) - (len(shared) > 1 and isinstance(shared[-1].size, int))
        return shared[:place], shared[place:]

    def _ends_of_dimensions(self, shared: Group) -> set[int]:
        """Where dimensions of the scores end among the axes that they have beside queries and keys."""
        assert self.found.softmax is not None
        counts = [len([one for one in group if one in shared]) for group in self.found.softmax.groups]
        return {0, *accumulate(counts)}

    def _fitting(self, batch: Group, heads: Group) -> int:
        """How many of operands and result have these heads side by side in a dimension or two, behind positions."""
        layouts = [
            (self.queries.views, Roles(batch, self.found.queries, heads, self.size)),
            (self.keys.single, Roles(batch, self.found.keys, heads, self.size)),
            (self.values.single, Roles(batch, self.outer_keys, heads, self.value_size)),
            (self.views, Roles(batch, self.outer_queries, heads, self.value_size)),
        ]
        return sum(any(_fits(view, roles) for view in views) for views, roles in layouts)

    def _check_lengths(self) -> None:
        """Refuse scores that are broadcast along the queries or the keys, and keys that are not as many as values."""
        found = self.found
        known = [*self.outer_keys.sizes]
        keys_alike = found.keys is self.outer_keys or any(self.outer_keys.is_size(size) for size in found.keys.sizes)
        need(keys_alike, "the keys are not proven to be as many as the values", self.root)
        if found.queries is not self.outer_queries:
            mine, outer = found.queries.sizes, self.outer_queries.sizes
            alike = any(same_dim(a, b) for a in mine for b in outer) or (
                any(same_dim(a, b) for a in mine for b in known) and any(same_dim(a, b) for a in outer for b in known)
            )
            need(alike, "the scores are broadcast", self.root)

    def _heads(self, views: Sequence[View], batch: Group, heads: Group, length: Axis, size: Axis) -> Heads:
        present = {one for view in views[:1] for one in view.axes}
        need(
            set(leaves(batch)) <= present,
            "the batches are not proven to be of one size; --rename-dim says it of inputs",
            views[0].value,
        )
        own = tuple(one for one in leaves(heads) if one in present)
        need(own == leaves(heads)[: len(own)], "the heads are not repeated one by one", views[0].value)
        return heads_from(views, Roles(batch, length, own, size), batch=size_of(batch), length=length.size)

    def _both(self, part: Operand, batch: Group, heads: Group, length: Axis, size: Axis) -> tuple[Heads, Heads]:
        """Heads as they are read, and before they were repeated for groups."""
        read = self._heads(part.views, batch, heads, length, size)
        try:
            return read, self._heads(part.single, batch, heads, length, size)
        except Refusal:
            return read, read

    def _bias(self, batch: Group, heads: Group, kind: ir.DataType) -> Bias | None:
        found = self.found
        steps = found.steps[::-1]
        while steps and steps[0].kind is Kind.RAISED:
            del steps[0]
        if not steps:
            return None
        need(not found.cap or not any(step.capped for step in steps), "scores are capped after a mask", self.root)
        need(found.kinds == {kind}, "the scores are of another type than the queries", self.root)
        same = {inner: outer for outer, inner in reversed(found.pairs)}
        same = {inner: same.get(outer, outer) for inner, outer in same.items()}
        layout = (batch, heads, (self.outer_queries,), (self.outer_keys,))
        measures = self.queries.views
        terms = tuple(biases.term(step, layout, same, measures, self.batch) for step in steps)
        whole = self._is_whole(terms)
        bias = Bias(terms, found.guarded, kind, whole)
        biases.check(bias)
        return bias

    def _is_whole(self, terms: Sequence[biases.Term]) -> bool:
        rows = [term.shape[2] for term in terms if term.shape[2] is not None]
        columns = [term.shape[3] for term in terms if term.shape[3] is not None]
        alike_rows = not rows or any(self.outer_queries.is_size(dim) or self.found.queries.is_size(dim) for dim in rows)
        return alike_rows and any(self.outer_keys.is_size(dim) for dim in columns)


def _fits(view: View, roles: Roles) -> bool:
    own = view.axes
    return any(one in own for one in leaves(roles.heads)) and own == tuple(
        one for group in roles.merged for one in group if one in own
    )


def _of(letters: str, groups: dict[str, Group]) -> Group:
    return leaves(one for letter in letters for one in groups.get(letter, ()))


def _groups(letters: str, groups: dict[str, Group]) -> tuple[Group, ...]:
    return tuple(groups.get(letter, ()) for letter in letters)


def _before(keys: Heads, values: Heads, batch: NonemptyBatch) -> tuple[Heads, Heads, Past | None]:
    """The new keys and values, and the past that was put before both; all as it is if there is none."""
    past_key, past_value = _concatenated(keys, batch), _concatenated(values, batch)
    if past_key is None or past_value is None:
        return keys, values, None
    new_keys, new_values = past_key[1], past_value[1]
    if not same_dim(new_keys.length, new_values.length) or keys.columns is None or values.columns is None:
        return keys, values, None
    past = Past(past_key[0], past_value[0], keys.columns, values.columns)
    return new_keys, new_values, past


def _has_all(bias: Bias | None, new_keys: Heads) -> bool:
    """Whether a bias has a number for each key, or can be given one before the keys are put together."""
    if bias is None or bias.whole or bias.is_cut:
        return True
    try:
        new_keys.check_positions()
    except Refusal:
        return False
    return True


def _is_read_by_none(past: Past, values: Sequence[ir.Value], core: Sequence[ir.Node]) -> bool:
    """Whether none of some values is computed from past and new keys together, which the block will give itself."""
    wanted, inside = set(values), set(core)
    pending = [past.present_key, past.present_value]
    seen: set[ir.Value] = set()
    while pending:
        at = pending.pop()
        if at in wanted or len(seen) > _MAX_READERS:
            return False
        if at not in seen:
            seen.add(at)
            if any(node.graph is not core[0].graph for node in users(at)):
                return False
            pending.extend(value for node in users(at) if node not in inside for value in node.outputs)
    return True


def _concatenated(heads: Heads, batch: NonemptyBatch) -> tuple[ir.Value, Heads] | None:
    """The past, [batch, heads, past length, size], and the new part of heads; None if there are not two parts."""
    node = None if heads.columns is None else heads.columns.producer()
    roles = heads.roles
    if not is_op(node, "Concat") or len(node.inputs) != 2 or ops.Concat(node).axis != 2:
        return None
    past, new = inputs(node, 2)
    before, after = batch.shape_of(past), batch.shape_of(new)
    if before is None or after is None or not len(before) == len(after) == 4:
        return None
    length = Axis(after[2])
    alike = before[1] == after[1] == heads.count and before[3] == after[3] == heads.size
    if not alike or not same_dim(before[0], after[0]):
        return None
    views = all_above(View(new, (roles.batch, roles.heads, (length,), (roles.size,))), batch.shape_of)
    own = structs.replace(roles, length=length)
    return past, heads_from(views, own, batch=heads.batch, length=length.size)
