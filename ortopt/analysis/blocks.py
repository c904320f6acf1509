"""The blocks of a model that one op can stand for: attention, rotary embeddings, normalizations; fused or spelled out.

They are told by their shape alone: a softmax between two products, a half of a vector that is negated and put before
the other, the root of a mean of squares. This asks for none of what a pass proves before it fuses, so that a block that
no pass recognises counts too; and it costs a few steps at nodes of a few ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.match import before
from ortopt.onnx_ir_internals import use_count
from ortopt.semantics import constant_tensor
from ortopt.semantics.domains import MICROSOFT

MAX_STEPS: Final = 64
"""How many nodes are looked at on the way from one part of a block to the next."""

Op = tuple[str, str]


class Block(Struct, frozen=True):
    """A block of a model.

    Attributes:
        family: The name of its family.
        node: The op that stands for it, or the node that shows it where it is spelled out.
        fused: Whether one op stands for it.
    """

    family: str
    node: ir.Node
    fused: bool


class BlockCount(Struct, frozen=True):
    """How many blocks of a family a model has.

    Attributes:
        fused: Those that are one op.
        spelled_out: Those that are not.
    """

    fused: int = 0
    spelled_out: int = 0

    @property
    def all(self) -> int:
        """Both."""
        return self.fused + self.spelled_out


class Family(Struct, frozen=True):
    """A kind of block.

    Attributes:
        name: Its name for users.
        title: What one block is called.
        ops: The ops that stand for a block, with the number of blocks in one node.
        roots: The ops that a spelled-out block is told by.
        shows: Whether a node of these ops shows a block.
        ends: The nodes of a spelled-out block, at which passes may begin to look at it.
    """

    name: str
    title: str
    ops: Mapping[Op, Callable[[ir.Node], int]]
    roots: frozenset[str]
    shows: Callable[[ir.Node], bool]
    ends: Callable[[ir.Node], list[ir.Node]]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# -- attention --------------------------------------------------------------------------------------------------------

_PRODUCTS: Final = frozenset(
    {"MatMul", "Einsum", "Gemm", "FusedMatMul", "TransposeMatMul", "MatMulInteger", "QLinearMatMul"}
)
_ABOVE_SOFTMAX: Final = _names(
    "Add Sub Mul Div Where Cast Max Min Clip Tanh Reshape Transpose Identity Expand Concat Unsqueeze Squeeze "
    "Slice Dropout QuantizeLinear DequantizeLinear Neg"
)
_BELOW_SOFTMAX: Final = _names(
    "Where Dropout Cast Mul Div Reshape Transpose Identity Slice Split Unsqueeze Squeeze Expand QuantizeLinear "
    "DequantizeLinear DynamicQuantizeLinear"
)


def _is_attention(softmax: ir.Node) -> bool:
    """Whether a softmax stands between two products."""
    return _product_above(softmax) is not None and bool(_products_below(softmax))


def _product_above(softmax: ir.Node) -> ir.Node | None:
    """The product of queries and keys: neither of them is a weight."""
    return next((node for node in _above(softmax, _ABOVE_SOFTMAX) if _is_product_of_values(node)), None)


def _is_product_of_values(node: ir.Node) -> bool:
    if node.op_type not in _PRODUCTS:
        return False
    tensors = [constant_tensor(value) for value in node.inputs[:2]]
    return all(tensor is None or len(tensor.shape) > 2 for tensor in tensors)


def _products_below(softmax: ir.Node) -> list[ir.Node]:
    """The products of probabilities and values."""
    return [node for node in _below(softmax, _BELOW_SOFTMAX) if node.op_type in _PRODUCTS]


def _attention_ends(softmax: ir.Node) -> list[ir.Node]:
    return [*_products_below(softmax), softmax]


# -- rotary embeddings ------------------------------------------------------------------------------------------------

_PARTS: Final = frozenset({"Slice", "Split", "Gather", "GatherElements"})
_MOVES: Final = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Cast"})


def _is_rotary(concat: ir.Node) -> bool:
    """Whether a vector's halves are turned: one is negated, or both are products with the same two tables."""
    if len(concat.inputs) != 2:
        return False
    a, b = (_unmoved(value) for value in concat.inputs)
    if a is None or b is None:
        return False
    return _is_turned(a, b) or _is_turned(b, a) or _is_rotation(a, b) or _is_rotation(b, a)


def _is_turned(negated: ir.Node, other: ir.Node) -> bool:
    """Whether one is the negated part of a value, and the other another part."""
    if negated.op_type != "Neg":
        return False
    part = _unmoved(_operand(negated, 0))
    return part is not None and part.op_type in _PARTS and other.op_type in _PARTS and _source(part) is _source(other)


def _is_rotation(difference: ir.Node, total: ir.Node) -> bool:
    """Whether the two are ``a · c - b · s`` and ``b · c + a · s``."""
    if difference.op_type != "Sub" or total.op_type != "Add":
        return False
    factors = [_factors(difference), _factors(total)]
    return all(len(each) >= 4 for each in factors) and len(factors[0] & factors[1]) >= 2


def _factors(node: ir.Node) -> set[ir.Value]:
    """The operands of the two products that a node adds or subtracts."""
    products = [value.producer() for value in node.inputs if value is not None]
    if not all(product is not None and product.op_type == "Mul" for product in products):
        return set()
    return {value for product in products if product is not None for value in product.inputs if value is not None}


def _source(part: ir.Node) -> ir.Value | None:
    """What a part is taken from, before it was moved around."""
    value = _operand(part, 0)
    return None if value is None else before(value, *_MOVES, most=MAX_STEPS)


def _unmoved(value: ir.Value | None) -> ir.Node | None:
    """The node that computes a value, before it was moved around."""
    return None if value is None else before(value, *_MOVES, most=MAX_STEPS).producer()


def _operand(node: ir.Node, index: int) -> ir.Value | None:
    """An input; None where it is left out, as in a file that nobody has checked."""
    return node.inputs[index] if len(node.inputs) > index else None


def _rotary_ends(concat: ir.Node) -> list[ir.Node]:
    return [*_below(concat, _MOVES | {"Mul", "Add"}), concat]


# -- normalizations ---------------------------------------------------------------------------------------------------

_UNDER_ROOT: Final = frozenset({"Add", "Max", "Clip", "Cast", "Identity"})


def _is_normalization(root: ir.Node) -> bool:
    """Whether a node is the square root of a mean of squares, or one over it."""
    if root.op_type == "Pow" and not _is_number(_operand(root, 1), (0.5, -0.5)):
        return False
    means = (node for node in _above(root, _UNDER_ROOT) if node.op_type == "ReduceMean")
    return any(_is_square(_unmoved(_operand(mean, 0))) for mean in means)


def _is_square(node: ir.Node | None) -> bool:
    if node is None:
        return False
    if node.op_type == "Mul":
        return _operand(node, 0) is _operand(node, 1)
    return node.op_type == "Pow" and _is_number(_operand(node, 1), (2.0,))


def _is_number(value: ir.Value | None, numbers: tuple[float, ...]) -> bool:
    tensor = constant_tensor(value)
    return tensor is not None and tensor.size == 1 and float(tensor.numpy().reshape(())) in numbers


def _itself(root: ir.Node) -> list[ir.Node]:
    return [root]


# -- walks ------------------------------------------------------------------------------------------------------------


def _above(start: ir.Node, through: frozenset[str]) -> Iterator[ir.Node]:
    """The nodes above one, nearest first, as far as the ones between are of some ops."""
    return _walk([value.producer() for value in start.inputs if value is not None], through, _producers)


def _below(start: ir.Node, through: frozenset[str]) -> Iterator[ir.Node]:
    """The nodes below one, likewise."""
    return _walk(_users(start), through, _users)


def _walk(
    first: Iterable[ir.Node | None], through: frozenset[str], further: Callable[[ir.Node], Iterable[ir.Node | None]]
) -> Iterator[ir.Node]:
    pending = [node for node in first if node is not None]
    seen = set(pending)
    for _ in range(MAX_STEPS):
        if not pending:
            return
        node = pending.pop(0)
        yield node
        if node.op_type in through:
            new = [other for other in further(node) if other is not None and other not in seen]
            seen.update(new)
            pending += new


def _producers(node: ir.Node) -> list[ir.Node | None]:
    return [value.producer() for value in node.inputs if value is not None]


def _users(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs if use_count(value) <= MAX_STEPS for use in value.uses()]


# -- families ---------------------------------------------------------------------------------------------------------


def _one(_: ir.Node) -> int:
    return 1


def _rotary_inside(node: ir.Node) -> int:
    """The embeddings inside of an attention op: of queries and keys."""
    attribute = node.attributes.get("do_rotary")
    return 2 if attribute is not None and not attribute.is_ref() and attribute.value else 0


def _ops(domain: str, names: str, count: Callable[[ir.Node], int] = _one) -> dict[Op, Callable[[ir.Node], int]]:
    return {(domain, name): count for name in names.split()}


FAMILIES: Final[Mapping[str, Family]] = {
    family.name: family
    for family in (
        Family(
            "attention",
            "attention blocks",
            _ops("", "Attention")
            | _ops(
                MICROSOFT,
                "Attention MultiHeadAttention GroupQueryAttention DecoderMaskedMultiHeadAttention PackedAttention"
                " DecoderMaskedSelfAttention PackedMultiHeadAttention QAttention DecoderAttention LongformerAttention"
                " SparseAttention PagedAttention QOrderedAttention MultiScaleDeformableAttention",
            ),
            frozenset({"Softmax", "QLinearSoftmax", "BiasSoftmax"}),
            _is_attention,
            _attention_ends,
        ),
        Family(
            "rotary",
            "rotary embeddings",
            _ops("", "RotaryEmbedding")
            | _ops(MICROSOFT, "RotaryEmbedding")
            | _ops(MICROSOFT, "GroupQueryAttention Attention SparseAttention", _rotary_inside),
            frozenset({"Concat"}),
            _is_rotary,
            _rotary_ends,
        ),
        Family(
            "normalization",
            "normalizations",
            _ops(
                "",
                "LayerNormalization RMSNormalization SimplifiedLayerNormalization GroupNormalization"
                " InstanceNormalization MeanVarianceNormalization",
            )
            | _ops(
                MICROSOFT,
                "SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization GroupNorm"
                " SkipGroupNorm QOrderedLayerNormalization QEmbedLayerNormalization",
            ),
            frozenset({"Sqrt", "Pow"}),
            _is_normalization,
            _itself,
        ),
    )
}
"""The kinds of blocks, by name."""

_INTERESTING: Final = frozenset(
    name for family in FAMILIES.values() for name in (*family.roots, *(op for _, op in family.ops))
)


def blocks_at(node: ir.Node) -> Iterator[Block]:
    """The blocks that a node is, or shows.

    Args:
        node: A node of a graph.
    """
    if node.op_type not in _INTERESTING:
        return
    for family in FAMILIES.values():
        inside = family.ops.get((node.domain, node.op_type))
        if inside is not None:
            yield from (Block(family.name, node, True) for _ in range(inside(node)))
        elif node.op_type in family.roots and family.shows(node):
            yield Block(family.name, node, False)


def blocks(model: ir.Model, family: str, token: CancellationToken = NEVER) -> list[Block]:
    """The blocks of a family in all graphs of a model, in their order.

    Args:
        model: The model.
        family: The family's name.
        token: Cancellation token.
    """
    graphs = scope.graphs(model, token)
    return [block for graph in graphs for node in graph for block in blocks_at(node) if block.family == family]


def count(found: Iterable[Block]) -> dict[str, BlockCount]:
    """How many blocks of each family there are.

    Args:
        found: The blocks.
    """
    numbers = {name: [0, 0] for name in FAMILIES}
    for block in found:
        numbers[block.family][not block.fused] += 1
    return {name: BlockCount(*both) for name, both in numbers.items()}
