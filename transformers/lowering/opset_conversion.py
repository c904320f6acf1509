"""A newer opset may have one op for a pattern of many nodes."""

from collections.abc import Callable

import onnx_ir as ir

from ortopt.analysis import kernels, releases
from ortopt.analysis.costs import Form
from ortopt.cancellation import CancellationToken
from ortopt.framework.fusions import preferred
from ortopt.framework.placement import meant_providers
from ortopt.graph import scope
from ortopt.graph.match import Refusal
from ortopt.opset_conversion import raising
from ortopt.options import TransformerLevel
from ortopt.patterns.attention.block import attention
from ortopt.patterns.attention.contraction import PRODUCTS
from ortopt.patterns.attention.emptiness import check_guard, check_masked_rows, may_be_empty
from ortopt.patterns.attention.heads import Heads
from ortopt.patterns.layer_normalization import ROOTS, layer_normalization, rms_normalization
from ortopt.patterns.rotary.block import ROOTS as ROTARY_ROOTS
from ortopt.patterns.rotary.block import rotary, wants_standard_op
from ortopt.transformer import Context, GraphTransformer


def _rms_alone(root: ir.Node) -> None:
    """A root-mean-square normalization that is no part of a layer normalization, as in `rms_norm_fusion`.

    Raises:
        Refusal: If it is none.
    """
    rms_normalization(root)
    try:
        layer_normalization(root)
    except Refusal:
        return
    raise Refusal("it is a layer normalization")


def _rotary(root: ir.Node) -> None:
    """An embedding for which the standard op is the better one.

    Raises:
        Refusal: If it is none.
    """
    if not wants_standard_op(rotary(root)):
        raise Refusal("one table serves all sequences")


def _attention(root: ir.Node) -> None:
    """A block for which the kernel of Attention does.

    Raises:
        Refusal: If it is none.
    """
    block = attention(root, assumes_nonempty=True)
    check_masked_rows(block)
    if may_be_empty(block):
        parts = (block.queries, block.keys, block.values)
        check_guard(block, flat=block.flat or all(part.is_flat or _is_rotated(part) for part in parts))


def _is_rotated(heads: Heads) -> bool:
    """Whether heads are rotated, which RotaryEmbedding does side by side."""
    node = heads.views[-1].value.producer()
    try:
        return node is not None and bool(rotary(node))
    except Refusal:
        return False


_WANTED: tuple[tuple[int, str, tuple[str, ...], Callable[[ir.Node], object]], ...] = (
    (17, "LayerNormalization", ROOTS, layer_normalization),
    (23, "RMSNormalization", ROOTS, _rms_alone),
    (23, "RotaryEmbedding", ROTARY_ROOTS, _rotary),
    (23, "Attention", PRODUCTS, _attention),
)
"""The opset that has an op, the op, the roots of its pattern, and the pattern."""


class OpsetConversion(GraphTransformer):
    """A model that spells out an op of a newer opset → the same model in that opset, if every node stays what it is.

    The opset never exceeds the one that was asked for, nor the newest that the oldest chosen ONNX Runtime reads. With
    ``--target onnx`` it stays as it is.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("cast_elimination", "constant_folding")
    apply_once = True
    offers_rewrites = True
    weighs = (("", "Conv", "of opset 22"),)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Raise the opset of the whole model, the highest that is wanted and possible first."""
        if graph is not context.model.graph:
            return False
        for version, op, root in reversed(_demands(context)):
            reason = _unwanted(root, Form("", op))
            if not reason:
                raised = _raised(version, context, f"it has an op for {op}")
                if not raised:
                    return True
                reason = f"{op} needs opset {version}: {raised}"
            context.refuse(root, reason)
        return False


def _demands(context: Context) -> list[tuple[int, str, ir.Node]]:
    """The opsets that are wanted, each with the op and a node that shows the need; lowest first."""
    demands = []
    for version, op, roots, pattern in _WANTED:
        if any(imports.get("", version) < version for imports in _imports(context.model)):
            matches = _matches(pattern, version, context.cancellation)
            root = next(filter(matches, _candidates(context, roots)), None)
            if root is not None:
                demands.append((version, op, root))
    return demands


def _unwanted(root: ir.Node, form: Form) -> str:
    """Why the run does not want a form of what a node computes; empty if it does."""
    try:
        preferred(root, [form])
    except Refusal as refusal:
        return str(refusal)
    return ""


def _imports(model: ir.Model) -> list[dict[str, int]]:
    return [model.opset_imports, *(function.opset_imports for function in model.functions.values())]


def _candidates(context: Context, roots: tuple[str, ...]) -> list[ir.Node]:
    index = context.edit.index
    return [node for graph in index.graphs() for op in roots for node in index.nodes(graph, op)]


def _matches(pattern: Callable[[ir.Node], object], version: int, token: CancellationToken) -> Callable[[ir.Node], bool]:
    """Whether a node is the root of a pattern in a graph of an older opset."""

    def matches(root: ir.Node) -> bool:
        token.check()  # each time: a large pattern takes long
        if scope.of_node(root).opset_imports.get("", version) >= version:
            return False
        try:
            pattern(root)
        except Refusal:
            return False
        return True

    return matches


def _raised(version: int, context: Context, why: str) -> str:
    """Raise the opset; returns why that is impossible, or an empty text."""
    if context.options.opset is not None:
        return f"opset {context.options.opset} was asked for"
    if context.options.target.keeps_to_onnx:
        return f"--target {context.options.target.value} keeps the opset: --opset allows another"
    needed = max(releases.of_opset(version), releases.of_ir(raising.least_ir_version(version)))
    least = releases.least(context.options)
    if needed > least:
        return f"ONNX Runtime {releases.shown(least)} does not read it, {releases.shown(needed)} does"
    steps = raising.plan(context.model, version, context.cancellation)
    if isinstance(steps, str):
        return steps
    lost = _lost_kernel(version, context) or _slower_op(version, context)
    if lost:
        return lost
    nodes = [step.node for step in steps]

    def change() -> list[ir.Node]:
        raising.apply(context.edit, context.model, version, steps)
        return nodes

    return "" if context.attempt(nodes, change, f"opset {version}: {why}") else "it was left out"


def _lost_kernel(version: int, context: Context) -> str:
    """Which op a provider runs now and would not run in another opset; an empty text if there is none."""
    providers = meant_providers(context.options)
    seen: set[tuple[object, ...]] = set()
    for graph in context.edit.index.graphs():
        have = scope.of(graph).opset_imports.get("", version)
        for node in context.cancellation.checked(graph) if have < version else ():
            kinds = tuple(None if value is None else value.dtype for value in node.inputs)
            if node.domain or (node.op_type, kinds, have) in seen:
                continue
            seen.add((node.op_type, kinds, have))
            for provider in providers:
                if kernels.support(provider, node, have) and not kernels.support(provider, node, version):
                    return f"{provider} has no kernel of {node.op_type} in opset {version}"
    return ""


def _slower_op(version: int, context: Context) -> str:
    """Why an op of the model is slower in another opset, which ONNX Runtime may not know; an empty text if none is."""
    for domain, op, variant in OpsetConversion.weighs:
        changed = int(variant.rpartition(" ")[2])
        for graph in context.edit.index.graphs():
            known = scope.of(graph).opset_imports.get("", version) < changed <= version
            node = next(iter(context.edit.index.nodes(graph, op)), None) if known else None
            if node is not None and (reason := _unwanted(node, Form(domain, op, variant))):
                return reason
    return ""
