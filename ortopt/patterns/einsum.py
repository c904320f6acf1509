"""Equations of Einsum as products of matrices: which axes of which operand go where."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Dim, Refusal, attribute, dims, need, same_dim

ELLIPSIS = "..."
Letters = tuple[str, ...]


class Equation(NamedTuple):
    """An equation of Einsum.

    Attributes:
        terms: For each operand the letter of each axis; the axes of an ellipsis have names of their own.
        result: The letters of the result.
    """

    terms: tuple[Letters, ...]
    result: Letters


class Step(Struct, frozen=True):
    """One op that moves axes or sums over some.

    Attributes:
        op: ReduceSum, Reshape, Squeeze, Transpose or Unsqueeze.
        numbers: Its axes, its permutation or its target shape.
    """

    op: str
    numbers: tuple[int, ...]


class Operand(Struct, frozen=True):
    """An operand, or a result, on its way to another arrangement of its axes.

    Attributes:
        letters: Its axes.
        steps: What has been done to it.
    """

    letters: Letters
    steps: tuple[Step, ...] = ()

    def ordered(self, letters: Letters) -> Operand:
        """The same axes in another order."""
        order = tuple(self.letters.index(letter) for letter in letters)
        moved = order != tuple(range(len(order)))
        return Operand(letters, (*self.steps, Step("Transpose", order)) if moved else self.steps)

    def without(self, letters: Sequence[str], op: str) -> Operand:
        """Without some axes: summed over, or of size 1 and squeezed."""
        axes = tuple(axis for axis, letter in enumerate(self.letters) if letter in letters)
        kept = tuple(letter for letter in self.letters if letter not in letters)
        return Operand(kept, (*self.steps, Step(op, axes))) if axes else self

    def then(self, *steps: Step) -> Operand:
        """With more steps, which keep its letters."""
        return Operand(self.letters, (*self.steps, *steps))


class Product(Struct, frozen=True):
    """A product that gives the result of an equation.

    Attributes:
        op: MatMul or Mul, which gives -0.0 where Einsum and MatMul give +0.0.
        left: How the left operand is arranged.
        right: How the right operand is arranged.
        swapped: Whether the left operand is the equation's second one.
        after: What is done to the product.
    """

    op: str
    left: Operand
    right: Operand
    swapped: bool
    after: tuple[Step, ...]


def equation_of(node: ir.Node) -> Equation:
    """The equation of an Einsum whose operands' ranks are known.

    Raises:
        Refusal: If it takes a diagonal, or is not understood.
    """
    text = "".join(attribute(node, "equation", "").split())
    left, arrow, right = text.partition("->")
    operands = [value for value in node.inputs if value is not None]
    terms = left.split(",")
    need(len(terms) == len(operands) == len(node.inputs), "the equation has another number of operands", node)
    ranks = [len(dims(value)) for value in operands]
    hidden = {rank - len(term.replace(ELLIPSIS, "")) for term, rank in zip(terms, ranks, strict=True) if "." in term}
    need(len(hidden) <= 1, "the ellipses stand for different numbers of axes", node)
    spread = tuple(f"{ELLIPSIS}{axis}" for axis in range(max(hidden, default=0)))
    letters = tuple(_letters(term, spread, node) for term in terms)
    for term, rank in zip(letters, ranks, strict=True):
        need(len(term) == rank, "an operand has another rank than its term", node)
        need(len(set(term)) == len(term), "it takes a diagonal", node)
    result = _letters(right, spread, node) if arrow else _implied(letters, spread, node)
    known = set(itertools.chain.from_iterable(letters))
    need(set(result) <= known and len(set(result)) == len(result), "the result repeats a letter or has a new one", node)
    need(set(spread) <= set(result), "the result leaves out the ellipsis", node)
    return Equation(letters, result)


def _letters(term: str, spread: Letters, node: ir.Node) -> Letters:
    before, dots, after = term.partition(ELLIPSIS)
    need((before + after).isalpha() or not before + after, "the equation has other signs than letters", node)
    return (*before, *(spread if dots else ()), *after)


def _implied(terms: Sequence[Letters], spread: Letters, node: ir.Node) -> Letters:
    """The result of an equation that does not name it: the letters that occur once, in alphabetical order."""
    every = [letter for term in terms for letter in term if letter not in spread]
    text = "".join(every)
    need(text.islower() or text.isupper() or not text, "implied results of mixed case are ordered differently", node)
    return (*spread, *sorted(letter for letter in every if every.count(letter) == 1))


def product_of(
    equation: Equation,
    shapes: Sequence[Sequence[Dim]],
    fixed: Sequence[bool],
    is_positive: Callable[[Dim], bool],
) -> Product:
    """The product that an equation of two operands is, with the fewest steps.

    Args:
        equation: The equation.
        shapes: The dimensions of the operands.
        fixed: Whether an operand is a constant, so that arranging it costs nothing.
        is_positive: Whether a dimension is never 0.

    Raises:
        Refusal: If sizes are not known to fit, or a Reshape would have to know more than one size.
    """
    sizes, first, second = _aligned(equation, shapes)
    operands = [
        operand.without([each for each in operand.letters if each not in other and each not in equation.result],
                        "ReduceSum")
        for operand, other in ((first, second.letters), (second, first.letters))
    ]  # fmt: skip
    common = set(operands[0].letters) & set(operands[1].letters)
    if common <= set(equation.result) and (common or not operands[0].letters or not operands[1].letters):
        left, right = (_spread(operand, equation.result) for operand in operands)
        return Product("Mul", left, right, False, ())
    return _cheapest(_candidates(operands, equation.result, sizes, is_positive), fixed)


def _aligned(equation: Equation, shapes: Sequence[Sequence[Dim]]) -> tuple[Mapping[str, Dim], Operand, Operand]:
    """The sizes of the letters, and the operands without axes of size 1 along which they broadcast."""
    a, b = (dict(zip(term, shape, strict=True)) for term, shape in zip(equation.terms, shapes, strict=True))
    dropped: tuple[list[str], list[str]] = ([], [])
    for letter in a:
        if letter not in b or same_dim(a[letter], b[letter]):
            continue
        need(same_dim(a[letter], 1) or same_dim(b[letter], 1), "the sizes of a letter may differ")
        dropped[0 if same_dim(a[letter], 1) else 1].append(letter)
    sizes = {**b, **a, **{letter: b[letter] for letter in dropped[0]}}
    need(not any(same_dim(size, 0) for size in sizes.values()), "a dimension is 0")
    first, second = (Operand(term).without(gone, "Squeeze") for term, gone in zip(equation.terms, dropped, strict=True))
    return sizes, first, second


def _spread(operand: Operand, result: Letters) -> Operand:
    """An operand that broadcasts to a result, without axes in front."""
    own = operand.ordered(tuple(letter for letter in result if letter in operand.letters))
    full = result[result.index(own.letters[0]) :] if own.letters else ()
    missing = tuple(axis for axis, letter in enumerate(full) if letter not in own.letters)
    return own.then(Step("Unsqueeze", missing)) if missing else own


def _cheapest(candidates: Iterator[Product | Refusal], fixed: Sequence[bool]) -> Product:
    best: tuple[int, Product] | None = None
    refusal: Refusal | None = None
    for one in candidates:
        if isinstance(one, Refusal):
            refusal = refusal or one
            continue
        free = fixed[::-1] if one.swapped else fixed
        steps = [() if free[0] else one.left.steps, () if free[1] else one.right.steps, one.after]
        cost = sum(map(_cost, itertools.chain.from_iterable(steps)))
        if best is None or cost < best[0]:
            best = cost, one
    if best is None:
        raise refusal or Refusal("no product of matrices gives it")
    return best[1]


TRANSPOSE_OF_ELEMENTS, TRANSPOSE_OF_ROWS, OTHER = 8, 3, 1
"""What steps cost. A Transpose moves the data, much faster where rows stay whole; what the others cost is next to
nothing, or not avoidable."""


def _cost(step: Step) -> int:
    if step.op != "Transpose":
        return OTHER
    return TRANSPOSE_OF_ELEMENTS if _moves_elements(step) else TRANSPOSE_OF_ROWS


def _candidates(
    operands: Sequence[Operand], result: Letters, sizes: Mapping[str, Dim], is_positive: Callable[[Dim], bool]
) -> Iterator[Product | Refusal]:
    for swapped, inner_of in itertools.product((False, True), (0, 1)):
        left, right = operands[::-1] if swapped else operands
        of, beside = (left, right)[inner_of].letters, (left, right)[1 - inner_of].letters
        inner = tuple(letter for letter in of if letter in beside and letter not in result)
        for groups in _grouped(left, right, inner, result, sizes):
            try:
                product = Operand(tuple(itertools.chain.from_iterable(groups.product)))
                own = _joined(left, groups.left, sizes, is_positive)
                other = _joined(right, groups.right, sizes, is_positive)
                after = _split(product, groups.product, sizes, is_positive).ordered(result)
                need(
                    not (_scatters(after) and (_scatters(own) or _scatters(other))),
                    "it would be transposed as often as the Einsum does",
                )
            except Refusal as refusal:
                yield refusal
            else:
                yield Product("MatMul", own, other, swapped, after.steps)
                break


def _scatters(operand: Operand) -> bool:
    """Whether axes are joined, or split, that a Transpose of single elements has to bring together, or apart."""
    return any(step.op == "Reshape" for step in operand.steps) and any(map(_moves_elements, operand.steps))


def _moves_elements(step: Step) -> bool:
    """Whether it is a Transpose after which other elements are neighbours: it takes them one by one."""
    return step.op == "Transpose" and step.numbers[-1] != len(step.numbers) - 1


class _Groups(Struct, frozen=True):
    """The letters of each axis of a matrix product; an axis without a letter has size 1.

    Attributes:
        left: Of the left operand.
        right: Of the right operand.
        product: Of the product.
    """

    left: tuple[Letters, ...]
    right: tuple[Letters, ...]
    product: tuple[Letters, ...]


MIN_ROWS = 16
"""Rows of each of many products that are worth it."""


def _grouped(
    left: Operand, right: Operand, inner: Letters, result: Letters, sizes: Mapping[str, Dim]
) -> Iterator[_Groups]:
    """The ways to arrange a product, the first that is possible the best."""
    batch = tuple((each,) for each in result if each in left.letters and each in right.letters)
    rows = tuple(each for each in result if each in left.letters and each not in right.letters)
    columns = tuple(each for each in result if each in right.letters and each not in left.letters)
    alone = tuple((each,) for each in rows)  # a vector, or a stack of matrices, is as it should be on the left
    if batch:
        yield _Groups((*batch, rows, inner), (*batch, inner, columns), (*batch, rows, columns))
        # To join all rows, one may have to know too many sizes; as a stack they are faster where nothing is moved then.
        stack, row = alone[:-1], alone[-1:]
        groups = _Groups((*stack, *batch, *row, inner), (*batch, inner, columns), (*stack, *batch, *row, columns))
        in_order = tuple(itertools.chain.from_iterable(groups.product)) == result
        if stack and in_order and _may_be_many(sizes[rows[-1]]):
            yield groups
    elif rows or columns:
        yield _Groups((*alone, inner), (inner, columns), (*alone, columns))
    else:
        yield _Groups((inner,), (inner,), ())


def _may_be_many(size: Dim) -> bool:
    return not isinstance(size, int) or size >= MIN_ROWS


def _joined(
    operand: Operand, groups: Sequence[Letters], sizes: Mapping[str, Dim], is_positive: Callable[[Dim], bool]
) -> Operand:
    """An operand with the axes of each group joined."""
    own = operand.ordered(tuple(itertools.chain.from_iterable(groups)))
    if all(len(group) == 1 for group in groups):
        return own
    if all(len(group) < 2 for group in groups):
        return own.then(Step("Unsqueeze", tuple(axis for axis, group in enumerate(groups) if not group)))
    target = []
    for axis, group in enumerate(groups):
        known = [size for each in group if isinstance(size := sizes[each], int)]
        if len(known) == len(group):
            target.append(math.prod(known))
        else:
            target.append(0 if len(group) == 1 and own.letters[axis : axis + 1] == group else -1)
    _check_target(target, [[sizes[each] for each in group] for group in groups], is_positive)
    return own.then(Step("Reshape", tuple(target)))


def _split(
    product: Operand, groups: Sequence[Letters], sizes: Mapping[str, Dim], is_positive: Callable[[Dim], bool]
) -> Operand:
    """A product with an axis for each letter."""
    if all(len(group) == 1 for group in groups):
        return product
    if all(len(group) < 2 for group in groups):
        return product.then(Step("Squeeze", tuple(axis for axis, group in enumerate(groups) if not group)))
    target = []
    for axis, letter in enumerate(product.letters):
        size = sizes[letter]
        as_it_is = axis < len(groups) and groups[axis] == (letter,)
        target.append(size if isinstance(size, int) else 0 if as_it_is else -1)
    _check_target(target, [[sizes[letter]] for letter in product.letters], is_positive)
    return product.then(Step("Reshape", tuple(target)))


def _check_target(target: Sequence[int], sizes: Sequence[Sequence[Dim]], is_positive: Callable[[Dim], bool]) -> None:
    free = target.count(-1)
    need(free < 2, "a Reshape would have to know two sizes")
    others = [size for number, group in zip(target, sizes, strict=True) if number != -1 for size in group]
    need(not free or all(is_positive(size) for size in others), "beside a dimension of 0 another would be unknown")
