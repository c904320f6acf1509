"""Type and shape inference with symbolic dimensions and the contents of shape tensors, in place on onnx-ir.

`infer_model` does a whole model, `infer_node` one new node from its inputs. What becomes of the results:

- Inputs of the model: what is declared is a fact, ONNX Runtime enforces it.
- Intermediate values: ``value.type`` and ``value.shape`` are recomputed. Every known shape is frozen, shared, and in
  canonical form (`ortopt.graph.symbolic`); a dimension that nobody knows is an invented symbol, the same one wherever
  it must be the same number. Values of which not even the rank is known have no shape.
- What a file declares for a computed value (its value_info, an output, the input of a body) is a claim: ONNX Runtime
  only warns where it is wrong, so it proves no rank, no dimension and no name. It is all there is, and believed, for
  the results of ops of which inference knows nothing: of unknown domains, newer than the schemas. `_known_before`
  decides this, and nobody else. Other claims that say more than is proven are kept apart (`facts.claim_of`).
- Inputs and outputs of graphs: declared types and shapes are interface and stay; a missing type is filled in, a missing
  shape is not; what is proven is kept in ``value.meta`` and read with `shape_of`, as everything is that asks for
  shapes.
- The elements of small integer tensors are kept in ``value.meta`` and read with `contents`.

A local function is inferred for each different set of argument types that it is called with; its body ends up with what
holds for all of them. Nested graphs are walked with a stack of our own, as deep as a file may nest them.

A model that is wrong (ranks that do not fit, attributes that make no sense) never raises here: what follows from the
mistake is unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ortopt.analysis.claims import (
    InnerScopes,
    dims_of_constant,
    dims_of_declared,
    hidden,
    hide,
    keep_claim,
    leave_claims,
    without_invented,
)
from ortopt.analysis.shape_rules import RULES
from ortopt.analysis.shape_rules.fallback import infer_by_schema
from ortopt.analysis.shape_rules.registry import Call, Steps, join_dims
from ortopt.analysis.sizes_in_every_run import sizes_in_every_run
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.facts import (
    CONTENTS,
    INTEGERS,
    OPSETS,
    POSITIVE,
    SCOPE,
    SHAPE,
    SIZES,
    Dims,
    all_contents,
    contents,
    dims_of,
    set_better_shape,
    set_contents,
    shape_from,
    shape_of,
)
from ortopt.graph.integer_ranges import Sizes, extent
from ortopt.graph.symbolic import (
    INVENTED,
    UNKNOWN,
    Dim,
    canonical,
    factors,
    fresh,
    is_invented,
    is_of_inputs,
    is_positive,
    symbols,
)
from ortopt.onnx_ir_internals import get_meta, initializers_of, is_needed
from ortopt.semantics import subgraphs
from ortopt.semantics.nodes import callers_first

_LATEST_OPSET = 26
_MAX_NODES_WALKED_AGAIN = 20_000
_MAX_REVISITS = 3  # what is learned of symbols late helps nodes before
_MAX_RANK = 64  # no array of numpy has more; each Gather of a row of Gathers may double it
_MAX_SIGNATURES = 16  # a function that is called with more kinds of arguments is inferred without knowing them

_fresh = itertools.count(1)

Fact: TypeAlias = tuple[ir.TypeProtocol | None, Dims | None, Dims | None]
"""What is known of an argument or a result: type, dimensions, contents."""

_NOTHING: Fact = (None, None, None)


def infer_model(model: ir.Model, token: CancellationToken = NEVER, nonempty: Iterable[str] = ()) -> None:
    """Infer types, shapes and contents of every value of a model: graphs, nested graphs, local functions.

    Args:
        model: The model.
        token: Cancellation token; types in functions may hold for one of their calls only then.
        nonempty: Symbols of the inputs that are not 0, as the caller says.
    """
    positive = {str(canonical(name)) for name in nonempty}
    _Inference(model.functions, model.opset_imports, token=token, positive=positive).infer_model(model)


def infer_node(node: ir.Node) -> None:
    """Infer the outputs of one node from its inputs, its own subgraphs included.

    Args:
        node: A node whose inputs have been inferred; it need not be in a graph yet (its opset is then ``node.version``
            or the newest). A call of a local function is left as it is.
    """
    _infer_alone(node, again=False)


def infer_again(node: ir.Node) -> None:
    """Infer one node that has been inferred before: what is still unknown keeps the symbols invented for it.

    Args:
        node: A node of a graph, no call of a local function.
    """
    _infer_alone(node, again=True)


def _infer_alone(node: ir.Node, *, again: bool) -> None:
    graph = node.graph
    opsets: Mapping[str, int] = {}
    sizes = None
    if graph is not None:
        opsets = graph.meta.get(OPSETS) or graph.opset_imports
        sizes = graph.meta.get(SIZES)
    positive: set[str] = set() if graph is None else graph.meta.get(POSITIVE) or set()
    inference = _Inference({}, opsets, sizes=sizes, alone=True, again=again, positive=positive)
    pending = inference.infer(node)
    if pending is not None:
        inference.drive(pending)


class _Inference:
    """One run of inference: over a model, or for a node alone."""

    def __init__(
        self,
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        opsets: Mapping[str, int],
        *,
        sizes: Sizes | None = None,
        alone: bool = False,
        token: CancellationToken = NEVER,
        again: bool = False,
        positive: set[str] | None = None,
    ) -> None:
        self._watch = token.checked
        self._functions = functions
        self._opsets = opsets
        self.sizes = sizes or Sizes()
        self._alone = alone
        self._again = again
        self._scopes = 0
        self._entered: set[int] = set()
        self._open: set[ir.Value] = set()
        self._stated: dict[ir.Graph, list[tuple[ir.Value, ir.TypeProtocol | None, ir.Shape | None, Any]]] = {}
        self._walked: set[int] = set()
        self._patience = _MAX_NODES_WALKED_AGAIN
        self._main: ir.Graph | None = None
        self._positive: set[str] = set() if positive is None else positive
        self._at: ir.Node | None = None  # the node of the main graph that is inferred
        self._missed: dict[ir.Node, set[str]] = {}
        self._doubted: list[ir.Node] = []
        self._results: dict[tuple[ir.OperatorIdentifier, tuple[Fact, ...]], list[Fact] | None] = {}
        self._signatures: dict[ir.OperatorIdentifier, list[tuple[Fact, ...]]] = {}

    # Whole models

    def infer_model(self, model: ir.Model) -> None:
        graph = model.graph
        self.enter(graph)
        for value in graph.inputs:
            value.meta.pop(CONTENTS, None)
            self._know_input(value, dims_of_declared(value))
        self._main = graph
        self.sizes = graph.meta[SIZES] = Sizes(
            extent(dims, value.dtype) for value in graph.inputs if (dims := dims_of(value)) is not None
        )
        self.drive(self._walk(graph))
        doubted = self._no_longer_doubted(graph)
        seen: dict[str, int] = {}
        for _ in range(_MAX_REVISITS):
            known = {**dict.fromkeys(self._positive, 1), **self.sizes.least}
            learned = {name for name, least in known.items() if seen.get(name) != least}
            seen = known
            helped = [node for node, names in self._missed.items() if not names.isdisjoint(learned)]
            helped += doubted
            if not helped:
                break
            self._walked.clear()
            self.drive(self._revisit(graph, helped))
            doubted = self._no_longer_doubted(graph)
        self._finish_functions()

    def _no_longer_doubted(self, graph: ir.Graph) -> list[ir.Node]:
        """The nodes whose integers may fit their types, now that the tensors of every run are known."""
        if not (self._doubted and self.sizes.learn(sizes_in_every_run(graph))):
            return []
        doubted, self._doubted = self._doubted, []
        return doubted

    def _revisit(self, graph: ir.Graph, helped: Iterable[ir.Node]) -> Iterator[ir.Graph]:
        """Infer again the nodes of the main graph for which more is known now, and those that read what changes."""
        due = set(graph if self._functions else helped)  # a function holds what all of its calls agree on
        self._results.clear()
        self._signatures.clear()
        changed: set[ir.Value] = set()
        for node in self._watch(graph):
            if node not in due and changed.isdisjoint(node.inputs) and not (changed and any(subgraphs(node))):
                continue
            self._at = node
            self._missed.pop(node, None)
            before = [_known(value) for value in node.outputs]
            pending = self.infer(node)
            if pending is not None:
                yield from pending
            asked = node.op_type == "Cast"  # a Range of floats asks for the integers before
            now = zip(node.outputs, before, strict=True)
            changed.update(value for value, had in now if asked or _known(value) != had)

    def _forget(self, graph: ir.Graph) -> None:
        """Take back what an earlier walk of a graph has found: that was for other arguments, and is nothing stated."""
        stated = self._stated.get(graph)
        if stated is None:
            self._stated[graph] = [
                (value, value.type, value.shape, get_meta(value, SHAPE)) for node in graph for value in node.outputs
            ]
            return
        for value, type_, shape, proven in stated:
            value.type, value.shape = type_, shape
            value.meta.pop(CONTENTS, None)
            if proven is not None:
                value.meta[SHAPE] = proven
            else:
                value.meta.pop(SHAPE, None)

    def _finish_functions(self) -> None:
        """Leave in each function's body what holds for all of its calls, callers first."""
        for identifier in callers_first(self._functions):
            signatures = self._signatures.get(identifier)
            if signatures is None:  # nobody calls it
                leave_claims(self._functions[identifier].graph)
                continue
            arguments = _joined(signatures)
            self._results.pop((identifier, arguments), None)
            self.drive(self._body(self._functions[identifier], arguments))

    # Symbols that are not 0

    def is_positive(self, dim: Dim) -> bool:
        """Whether a dimension is at least 1 wherever the model runs."""
        return is_positive(dim, self._positive) or self.is_at_least(dim, 1)

    def is_at_least(self, element: Dim, number: int) -> bool:
        """Whether an element of a tensor of integers is never below a number wherever the model runs."""
        if self.sizes.is_at_least(element, number):
            return True
        if self._at is not None and not isinstance(element, int) and element.value is not None:
            self._missed.setdefault(self._at, set()).update(symbols(element), (element.value,))
        return False

    def fails_without(self, node: ir.Node, dim: Dim) -> None:
        """Note that a node fails where a dimension is 0: where the model runs, it does, if it is one of the main graph.

        Only symbols of the model's inputs, and what these broadcast to, are the same number everywhere.
        """
        if node.graph is self._main and node.graph is not None and any(map(is_needed, node.outputs)):
            self._positive.update(name for name in (*factors(dim), str(dim)) if is_of_inputs(name))
            if all(map(is_of_inputs, symbols(dim))):
                self.sizes.learn_positive(dim)

    def doubts(self, node: ir.Node) -> None:
        """Infer a node again once more is known of the sizes, if it is one of the main graph."""
        if node.graph is self._main is not None:
            self._doubted.append(node)

    # Graphs

    def enter(self, graph: ir.Graph) -> None:
        """Number a graph; the same number for the whole run."""
        if id(graph) not in self._entered:
            self._entered.add(id(graph))
            self._scopes += 1
            if not self._again or SCOPE not in graph.meta:
                graph.meta[SCOPE] = f"#{next(_fresh)}" if self._alone else str(self._scopes)
            self._open.update(value for value in graph.inputs if value.shape is None)
        graph.meta[OPSETS] = self._opsets
        graph.meta[POSITIVE] = self._positive
        graph.meta[SIZES] = self.sizes

    def reopen(self, inputs: Iterable[ir.Value]) -> None:
        """Let inputs of a nested graph that state no shape forget what an earlier walk was told."""
        for value in inputs:
            if value in self._open:
                value.shape = None

    def spend(self, graph: ir.Graph) -> bool:
        """Whether a body may be walked to learn more: the first time always, but loops in loops could go on."""
        if id(graph) not in self._walked:
            self._walked.add(id(graph))
            return True
        self._patience -= len(graph) + 1
        return self._patience > 0

    def drive(self, steps: Iterator[ir.Graph]) -> None:
        """Run an inference that asks for nested graphs, with a stack of our own."""
        stack = [steps]
        while stack:
            graph = next(stack[-1], None)
            if graph is None:
                stack.pop()
                continue
            self.enter(graph)
            self._forget(graph)
            stack.append(self._walk(graph))

    def _walk(self, graph: ir.Graph) -> Iterator[ir.Graph]:
        for value in self._watch(initializers_of(graph).values()):
            if value.is_graph_output() and not value.is_graph_input():
                self._store(value, value.type, dims_of_constant(value))
                set_contents(value, None, self.sizes)
        infer, is_main = self.infer, graph is self._main
        for node in self._watch(graph):
            if is_main:
                self._at = node
            pending = infer(node)
            if pending is not None:
                yield from pending

    # Nodes

    def infer(self, node: ir.Node) -> Iterator[ir.Graph] | None:
        """Infer one node; where it has subgraphs, the steps that remain to be driven."""
        if self._functions and node.op_identifier() in self._functions:
            return self._call(node)
        domain = node.domain
        call = Call(node, node.version or self._opsets.get(domain) or (_LATEST_OPSET if not domain else 1), self)
        rule = RULES.get((domain, node.op_type))
        if rule is None:
            rule = infer_by_schema
        try:
            pending = rule(call)
        except Exception:
            pending = None
        if pending is not None:
            return self._guarded(pending, call)
        self._finish(call)
        return None

    def _guarded(self, pending: Steps, call: Call) -> Iterator[ir.Graph]:
        first = self._scopes
        graphs: list[ir.Graph] = []
        try:
            for graph in pending:
                graphs.append(graph)
                yield graph
        except Exception:
            pass
        if call.node.op_type != "If":
            inner = {str(graph.meta.get(SCOPE)) for graph in graphs}
            numbers = range(0)
            if self._alone:
                inner.update(str(graph.meta.get(SCOPE)) for graph in scope.nested(call.node))
            else:
                numbers = range(first + 1, self._scopes + 1)
            hide(call, InnerScopes(inner, numbers))
        self._finish(call)

    def _finish(self, call: Call) -> None:
        refusals = self.sizes.refusals
        for index, value in enumerate(call.node.outputs):
            type_, shape, known = call.types[index], call.shapes[index], call.contents[index]
            if shape is not None and len(shape) > _MAX_RANK:
                shape = None
            if type(shape) is ir.Shape and not value.is_graph_output() and not _mentions_unknown(shape):
                value.shape = shape
                _set_type(value, type_)
            else:
                self._store(value, type_, shape, believed=call.believed)
            if known is not None:
                set_contents(value, known, self.sizes, _proven(call, value))
            elif value.dtype in INTEGERS:
                value.meta.pop(CONTENTS, None)
        if self.sizes.refusals != refusals:
            self.doubts(call.node)

    def _store(
        self,
        value: ir.Value,
        type_: ir.TypeProtocol | ir.DataType | None,
        dims: Iterable[Dim] | None,
        *,
        believed: bool = False,
    ) -> None:
        interface = value.is_graph_output()
        if not interface or value.type is None:
            _set_type(value, type_)
        completed = self._completed(value, dims, believed=believed)
        if value.type is not None and not isinstance(value.type, ir.TensorType | ir.SparseTensorType):
            completed = None
        if interface:  # what the file declares, or leaves open, stays
            set_better_shape(value, completed)
        else:
            if not self._alone and not believed:
                keep_claim(value, completed)
            value.shape = None if completed is None else shape_from(completed)
            if get_meta(value, SHAPE) is not None:
                del value.meta[SHAPE]

    def _completed(self, value: ir.Value, dims: Iterable[Dim] | None, *, believed: bool) -> Dims | None:
        """The dimensions, with what else may be relied on and then invented ones where they are not known."""
        before = self._known_before(value, believed=believed)
        if dims is None:
            if before is None:
                return None
            dims = before
        result = list(dims)
        usable = before is not None and len(before) == len(result)
        for axis, dim in enumerate(result):
            if isinstance(dim, int):
                if dim < 0:
                    result[axis] = self._invented(value, axis)
                continue
            if dim.value is None or is_invented(dim):
                stated = before[axis] if usable and before is not None else UNKNOWN
                if isinstance(stated, int) or stated.value is not None:
                    result[axis] = stated
                elif dim.value is None:
                    result[axis] = self._invented(value, axis)
        return tuple(result)

    def _known_before(self, value: ir.Value, *, believed: bool) -> Dims | None:
        """What may be relied on besides what the rule says of a computed value.

        Args:
            value: The result of a node.
            believed: Whether its op is one that inference cannot know: what the file declares is then all there is.

        Returns:
            For a node inferred alone what is proven of the value already, its own or that of the value that it stands
            for; of a model as it comes from a file nothing, or what it declares.
        """
        if self._alone:
            shape = shape_of(value)
            return None if shape is None else without_invented(shape.dims)
        return dims_of_declared(value) if believed else None

    def _invented(self, value: ir.Value, axis: int) -> ir.SymbolicDim:
        if self._again and (known := shape_of(value)) is not None and axis < len(known) and is_invented(known[axis]):
            return known[axis]  # type: ignore[return-value]
        graph = value.graph
        scope = None if graph is None or id(graph) not in self._entered else graph.meta[SCOPE]
        if scope is None or not value.name:
            return fresh(f"#{next(_fresh)}::{axis}")
        return fresh(f"{scope}:{value.name}:{axis}")

    def _know_input(self, value: ir.Value, dims: Iterable[Dim] | None) -> None:
        """Keep the canonical and completed shape of a graph's input beside the declared one."""
        if dims is None:
            set_better_shape(value, None)
            return
        set_better_shape(value, self._without_unknown(value, dims))

    def _without_unknown(self, value: ir.Value, dims: Iterable[Dim]) -> Dims:
        return tuple(
            self._invented(value, axis) if not isinstance(dim, int) and dim.value is None else dim
            for axis, dim in enumerate(dims)
        )

    # Local functions

    def _call(self, node: ir.Node) -> Iterator[ir.Graph]:
        identifier = node.op_identifier()
        function = self._functions[identifier]
        arguments = tuple(
            _fact(node.inputs[index]) if index < len(node.inputs) else _NOTHING for index in range(len(function.inputs))
        )
        call = Call(node, 1, self)
        key = (identifier, arguments)
        if key not in self._results:
            signatures = self._signatures.setdefault(identifier, [])
            if len(signatures) >= _MAX_SIGNATURES:
                arguments = (_NOTHING,) * len(function.inputs)
                key = (identifier, arguments)
            if key not in self._results:
                signatures.append(arguments)
                self._results[key] = None  # while it is None the function calls itself: nothing is known
                yield from self._body(function, arguments)
        for index, fact in enumerate(self._results[key] or ()):
            call.set(index, *fact)
        self._finish(call)

    def _body(self, function: ir.Function, arguments: tuple[Fact, ...]) -> Iterator[ir.Graph]:
        outer, self._opsets = self._opsets, function.opset_imports
        first = self._scopes
        graph = function.graph
        self.enter(graph)
        for value, (type_, dims, known) in zip(function.inputs, arguments, strict=True):
            value.type = type_
            value.shape = None if dims is None else shape_from(self._without_unknown(value, dims))
            value.meta.pop(SHAPE, None)
            set_contents(value, known, self.sizes, known or ())
        for value in function.outputs:
            if not value.is_graph_input():
                value.type, value.shape = None, None
        yield graph
        for value in function.outputs:
            if not value.is_graph_input():  # no interface: nobody has declared it
                value.shape = shape_of(value)
        inner = InnerScopes({str(graph.meta.get(SCOPE))}, range(first + 1, self._scopes + 1))
        self._results[function.identifier(), arguments] = [
            (value.type, hidden(dims_of(value), inner), hidden(contents(value), inner)) for value in function.outputs
        ]
        self._opsets = outer


def _joined(signatures: Sequence[tuple[Fact, ...]]) -> tuple[Fact, ...]:
    result = []
    for facts in zip(*signatures, strict=True):
        type_, dims, known = facts[0]
        for other_type, other_dims, other_known in facts[1:]:
            type_ = type_ if type_ == other_type else None
            dims = join_dims(dims, other_dims)
            known = join_dims(known, other_known)
        result.append((type_, dims, known))
    return tuple(result)


def _known(value: ir.Value) -> tuple[ir.TypeProtocol | None, ir.Shape | None, Dims | None]:
    return value.type, shape_of(value), get_meta(value, CONTENTS)


def _proven(call: Call, output: ir.Value) -> Iterator[Dim]:
    """What the rule knows to fit, and what inputs of the output's type hold: that is passed on, and fits as before."""
    yield from call.proven
    for value in call.inputs:
        if value is not None and value.dtype == output.dtype:
            yield from all_contents(value) or ()


def _fact(value: ir.Value | None) -> Fact:
    return _NOTHING if value is None else (value.type, dims_of(value), contents(value))


def _mentions_unknown(shape: ir.Shape) -> bool:
    return any(not isinstance(dim, int) and (dim.value is None or INVENTED in dim.value) for dim in shape)


def _set_type(value: ir.Value, type_: ir.TypeProtocol | ir.DataType | None) -> None:
    if isinstance(type_, ir.DataType):
        if value.dtype is not type_ or not isinstance(value.type, ir.TensorType):
            value.type = ir.TensorType(type_)
    elif type_ is not None:
        value.type = type_
