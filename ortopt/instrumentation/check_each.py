"""`CheckEach`: the model is validated after every transformer, and the first one that breaks it is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OptimizationCancelled
from ortopt.graph import scope
from ortopt.graph.edit import discard
from ortopt.graph.facts import dims_of
from ortopt.observers import InvalidGraph, Observer, RetryRequested
from ortopt.onnx_ir_internals import use_count
from ortopt.partition import groups
from ortopt.rule import RewriteRule
from ortopt.semantics import subgraphs
from ortopt.serialization.checks.structure import label, validate
from ortopt.terminal_text import quoted
from ortopt.transformer import GraphTransformer

_Signature = tuple[tuple[object, ...], ...]


class CheckEach(Observer):
    """Validates the model after every run of every transformer; a transformer that broke it fails.

    What is checked: names, order and dangling values (`ortopt.serialization.checks`); that groups are as their format
    says (`ortopt.partition.groups`); that producers and users of every value agree; that inputs and outputs of the
    model, names, types and shapes, are as they were; and, where something has changed, that the types and shapes of
    values do not contradict what inference computes for their nodes. Each check is linear in the nodes of the whole
    model: it is for debugging, not for production.

    Rules share a sweep: where a sweep has broken the model, it is repeated with a check after each rewrite.

    Args:
        closely: Whether to check after each rewrite from the start.
        token: Cancellation token.
    """

    def __init__(self, *, closely: bool = False, token: CancellationToken = NEVER) -> None:
        self._always = closely
        self._token = token.with_timeout(None)  # its deadline is for transformers
        self.begin()

    def begin(self) -> None:
        """Forget the model of an earlier run."""
        self._closely = self._always
        self._signature: _Signature | None = None
        self._known: frozenset[str] = frozenset()
        self._group_fault: str | None = None
        self._latest: str | None = None
        self._rules: dict[str, None] = {}

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Record which rules run, and the model's signature before the first transformer."""
        model = scope.of(graph).model
        if self._signature is None:
            self._signature = _signature_of(model)
            self._known = frozenset(name for name, _ in _contradictions(model, self._token))
            self._group_fault = groups.fault_of(model, self._token)
        if isinstance(transformer, RewriteRule):
            self._rules[transformer.name] = None

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Check after a rewrite, in a sweep that is repeated because it broke the model."""
        self._latest = transformer.name
        if self._closely and nodes:
            self._check(scope.of(scope.graph_of(nodes[0])).model, changed=True, any_order=True)

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Check the model after a run.

        Raises:
            InvalidGraph: The model is broken.
            RetryRequested: The model is broken, and any of several rules may have broken it.
        """
        several = len(self._rules) > 1
        self._rules.clear()
        try:
            self._check(model, changed)
        except InvalidGraph as invalid:
            if several and not self._closely:
                self._closely = True
                raise RetryRequested from invalid
            self._closely = self._always
            raise
        if changed:
            self._closely = self._always

    def _check(self, model: ir.Model, changed: bool, any_order: bool = False) -> None:
        try:
            validate(model, any_order=any_order, token=self._token)
        except (OptimizationCancelled, MemoryError):
            raise
        except InvalidModelError as error:
            raise InvalidGraph(str(error), self._latest) from error
        except Exception as error:  # reading a corrupted graph may fail in any way
            raise InvalidGraph(f"it cannot be read: {type(error).__name__}: {error}", self._latest) from error
        if self._signature is not None:
            _compare_signatures(self._signature, _signature_of(model), self._latest)
        fault = groups.fault_of(model, self._token)
        invalid = next(_inconsistent(model, self._token), None) if fault in (None, self._group_fault) else fault
        if invalid is None and changed:
            invalid = next(
                (what for name, what in _contradictions(model, self._token) if name not in self._known), None
            )
        if invalid is not None:
            raise InvalidGraph(invalid, self._latest)


def is_sound(model: ir.Model) -> bool:
    """Whether a model's structure is intact, after its editor may have been interrupted in mid-edit."""
    return invalidity(model) is None and next(_inconsistent(model), None) is None


def invalidity(model: ir.Model) -> str | None:
    """Why a model is invalid; None where it is valid. Linear in its nodes.

    Nodes that are in no graph may use its values: a transformer that raised leaves what it was building.
    """
    try:
        validate(model)
        return groups.fault_of(model)
    except InvalidModelError as error:
        return str(error)
    except Exception as error:  # reading a corrupted graph may fail in any way
        return f"it cannot be read: {type(error).__name__}: {error}"


def _signature_of(model: ir.Model) -> _Signature:
    """Inputs and outputs as a reader of the file sees them."""
    return tuple(
        (kind, value.name, str(value.type), None if value.shape is None else tuple(map(str, value.shape.dims)))
        for kind, values in (("input", model.graph.inputs), ("output", model.graph.outputs))
        for value in values
    )


def _compare_signatures(before: _Signature, after: _Signature, transformer: str | None) -> None:
    for old, new in zip(before, after, strict=False):
        if old != new:
            raise InvalidGraph(f"{_shown(old)} has become {_shown(new)}", transformer)
    if len(before) != len(after):
        raise InvalidGraph(f"the model has {len(after)} inputs and outputs instead of {len(before)}", transformer)


def _shown(row: tuple[object, ...]) -> str:
    kind, name, type_, shape = row
    dims = "" if shape is None else f"[{', '.join(shape)}]"  # type: ignore[arg-type]
    return f"{kind} {quoted(str(name))} {type_}{dims}"


def _inconsistent(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[str]:
    """Values whose users or producers are not what the value says."""
    uses: dict[ir.Value, int] = {}
    members: set[ir.Node] = set()
    for graph in scope.graphs(model, token):
        for node in token.checked(graph):
            members.add(node)
            for value in node.inputs:
                if value is not None:
                    uses[value] = uses.get(value, 0) + 1
            for index, value in enumerate(node.outputs):
                if value.producer() is not node or value.index() != index:
                    yield f"{quoted(value.name)} does not know that {label(node)} produces it"
    for value, count in token.checked(uses.items()):
        if use_count(value) == count:
            continue
        stray = next((use.node for use in value.uses() if use.node not in members), None)
        if stray is not None:
            yield f"{quoted(value.name)} is used by {label(stray)}, which is in no graph of the model"
        yield f"{quoted(value.name)} has {count} users, but knows of {use_count(value)}"


def _contradictions(model: ir.Model, token: CancellationToken) -> Iterator[tuple[str, str]]:
    """Values whose type or shape contradicts what inference computes for their node: name, and what is wrong."""
    functions = model.functions
    for graph in scope.graphs(model, token):
        imports = scope.of(graph).opset_imports
        for node in token.checked(graph):
            if node.op_identifier() in functions or (node.attributes and any(True for _ in subgraphs(node))):
                continue
            yield from _contradicted(node, imports.get(node.domain, 1))


def _contradicted(node: ir.Node, version: int) -> Iterator[tuple[str, str]]:
    shadow = ir.Node(
        node.domain,
        node.op_type,
        node.inputs,
        node.attributes.values(),
        overload=node.overload,
        num_outputs=len(node.outputs),
        version=version,
    )
    try:
        shapes.infer_node(shadow)
        for value, inferred in zip(node.outputs, shadow.outputs, strict=True):
            name = value.name or ""
            if value.dtype is not None and inferred.dtype is not None and value.dtype != inferred.dtype:
                dtypes = f"{value.dtype.name.lower()}, where it computes {inferred.dtype.name.lower()}"
                yield name, f"{quoted(name)}, a result of {label(node)}, is said to be {dtypes}"
                continue
            has, should = dims_of(value), dims_of(inferred)
            if has is None or should is None:
                continue
            differs = len(has) != len(should) or any(
                isinstance(one, int) and isinstance(other, int) and one != other
                for one, other in zip(has, should, strict=True)
            )
            if differs:
                dims = f"{_dims(has)}, where it computes {_dims(should)}"
                yield name, f"{quoted(name)}, a result of {label(node)}, is said to have the shape {dims}"
    finally:
        discard([shadow])


def _dims(dims: Iterable[object]) -> str:
    return f"[{', '.join(str(dim) if isinstance(dim, int) else '?' for dim in dims)}]"
