"""How many multiplications, each with an addition, a model takes: by op, as numbers or as formulas of its sizes.

Counted are products of matrices, convolutions, recurrent networks and attention. All else treats each element a few
times and is left out, as is usual.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope, symbolic
from ortopt.graph.facts import Dims, dims_of
from ortopt.graph.index import op_key
from ortopt.graph.match import Refusal, attribute, dims, need, need_known, optional
from ortopt.graph.symbolic import UNKNOWN, Dim, is_invented, is_known
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.nodes import callers_first
from ortopt.semantics.op_traits import PAST_KEYS


@dataclasses.dataclass(frozen=True, slots=True)
class MultiplyAdds:
    """The multiply-adds of a model.

    Attributes:
        by_op: By op, as `ortopt info` names it: a number or a formula.
        unknown: By op, how many nodes are not among them, for their sizes are not known.
    """

    by_op: Mapping[str, Dim]
    unknown: Mapping[str, int]

    @property
    def total(self) -> Dim:
        """All of them."""
        total: Dim = 0
        for count in self.by_op.values():
            total = symbolic.add(total, count)
        return total


def multiply_adds(model: ir.Model, token: CancellationToken = NEVER) -> MultiplyAdds:
    """Count the multiply-adds of a model.

    The body of a loop counts once, both branches of an If do, and a local function as often as it is called.

    Args:
        model: A model that has been inferred.
        token: Cancellation token.
    """
    by_op: dict[str, Dim] = {}
    unknown: Counter[str] = Counter()
    calls = _calls(model, token)
    for top in (model.graph, *(function.graph for function in model.functions.values())):
        times = calls.get(id(top), 0)
        for graph in scope.below(top, token) if times else ():
            for node in token.checked(graph):
                count = _of_node(node)
                if count is None:
                    continue
                name = op_key(node.domain, node.op_type)
                if not is_known(count) or is_invented(count):
                    unknown[name] += times
                else:
                    by_op[name] = symbolic.add(by_op.get(name, 0), symbolic.mul(count, times))
    return MultiplyAdds(by_op, dict(unknown))


def _calls(model: ir.Model, token: CancellationToken) -> dict[int, int]:
    """How often each graph of a model or function is run, by its id: the main graph once."""
    bodies = {identifier: function.graph for identifier, function in model.functions.items()}
    times: Counter[int] = Counter({id(model.graph): 1})
    for top in (model.graph, *(bodies[identifier] for identifier in callers_first(model.functions))):
        for graph in scope.below(top, token) if times[id(top)] else ():
            for node in token.checked(graph):
                if node.op_identifier() in bodies:
                    times[id(bodies[node.op_identifier()])] += times[id(top)]
    return times


def _of_node(node: ir.Node) -> Dim | None:
    """The multiply-adds of one node; the unknown dimension where they cannot be told, None where none are counted."""
    rule = _RULES.get(node.op_type) if node.domain in STANDARD_DOMAINS | {MICROSOFT} else None
    if rule is None:
        return None
    try:
        return rule(node)
    except (Refusal, IndexError):
        return UNKNOWN


def _input(node: ir.Node, index: int) -> Dims:
    return dims(need_known(optional(node, index), "it is left out", node))


def _output(node: ir.Node) -> Dims:
    return dims(node.outputs[0])


def _matmul(node: ir.Node) -> Dim:
    inner = _input(node, 0)[-2 if attribute(node, "transA", 0) else -1]
    return symbolic.product((*_output(node), inner))


def _blocked_matmul(node: ir.Node) -> Dim:
    return symbolic.product((*_output(node), attribute(node, "K", 0)))


def _convolution(weights: int) -> Callable[[ir.Node], Dim]:
    def rule(node: ir.Node) -> Dim:
        return symbolic.product((*_output(node), *_input(node, weights)[1:]))

    return rule


def _transposed_convolution(node: ir.Node) -> Dim:
    return symbolic.product((*_input(node, 0), *_input(node, 1)[1:]))


def _recurrent(node: ir.Node) -> Dim:
    """Each step of each sequence is multiplied by the weights of inputs and by those of states."""
    steps = _input(node, 0)[:2]
    weights = symbolic.add(symbolic.product(_input(node, 1)), symbolic.product(_input(node, 2)))
    return symbolic.product((*steps, weights))


def _einsum(node: ir.Node) -> Dim:
    """All labels of the equation, once each; two operands or more are multiplied."""
    terms = attribute(node, "equation", "").replace(" ", "").split("->")[0].split(",")
    need(not any("." in term for term in terms), "axes have no names", node)
    sizes: dict[str, Dim] = {}
    for index, term in enumerate(terms):
        for label, size in zip(term, _input(node, index), strict=False):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    return symbolic.product((*sizes.values(), len(terms) - 1))


def _attention(node: ir.Node) -> Dim:
    """Each query meets each key, and takes from each value; both in the size of the result."""
    out = _output(node)
    return symbolic.product((*out, 2, _keys(node)))


def _keys(node: ir.Node) -> Dim:
    """How many keys there are, those of the past included."""
    present = node.outputs[1] if len(node.outputs) > 1 and node.outputs[1].name else None
    shape = None if present is None else dims_of(present)
    if shape is not None and len(shape) == 4 and is_known(shape[2]) and not is_invented(shape[2]):
        return shape[2]
    past, axis = PAST_KEYS.get((node.domain, node.op_type), (0, 0))
    if optional(node, 1) is None:  # packed
        own: Dim = _input(node, 0)[1]
    else:
        keys = _input(node, 1)
        own = keys[2] if len(keys) == 4 else keys[1]
    return symbolic.add(own, _input(node, past)[axis]) if past and optional(node, past) is not None else own


def _projected_attention(node: ir.Node) -> Dim:
    """ONNX Runtime's own Attention: the projections, and what `_attention` counts."""
    if node.domain != MICROSOFT:
        return _attention(node)
    tokens, weights = _input(node, 0)[:2], _input(node, 1)
    projections = symbolic.product((*tokens, *weights))
    keys: Dim = tokens[1]
    if optional(node, 4) is not None:
        keys = symbolic.add(keys, _input(node, 4)[3])
    return symbolic.add(projections, symbolic.product((*_output(node), 2, keys)))


_MATMULS: Final[Sequence[str]] = (
    *("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm", "QGemm", "FusedMatMul", "FusedGemm", "FusedMatMulActivation"),
    *("TransposeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "GemmFastGelu"),
)

_RULES: Final[Mapping[str, Callable[[ir.Node], Dim]]] = {
    **dict.fromkeys(_MATMULS, _matmul),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4", "MatMulFpQ4"), _blocked_matmul),
    **dict.fromkeys(("Conv", "FusedConv", "ConvInteger", "DeformConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), _recurrent),
    "Einsum": _einsum,
    "Attention": _projected_attention,
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), _attention),
}
