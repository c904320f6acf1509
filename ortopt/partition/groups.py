"""The groups of a grouped model: what the file says, read back.

A group is a local function of the domain ``ortopt.group``, called by one node of that domain. Its inputs are runtime
values first, then weights: initializers of the model. What else is known of it stands in the function's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.documents import Count, parse_json, typed
from ortopt.errors import InvalidModelError
from ortopt.semantics import GROUP_DOMAIN, subgraphs
from ortopt.terminal_text import quoted

PROVIDER_KEY: Final = "ortopt.provider"
WEIGHTS_KEY: Final = "ortopt.weights"
ORIGIN_KEY: Final = "ortopt.origin"
GUARD_KEY: Final = "ortopt.guard"
PREFIX: Final = "group_"
OPSET: Final = 1
"""The version of the domain that grouped models import."""
IR_VERSION: Final = 10
"""The least that has metadata and types in functions."""
MAX_ORIGINS: Final = 8


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a grouped model.

    Attributes:
        name: ``group_K``.
        provider: The execution provider that runs it, by ONNX Runtime's name.
        function: What it computes.
        call: The one node that calls it.
        weights: How many of the last inputs are weights.
        origin: Names of the original's nodes, at most eight.
        origin_count: How many nodes of the original it stands for.
        guard: What must hold of the arguments, or None.
    """

    name: str
    provider: str
    function: ir.Function
    call: ir.Node
    weights: int
    origin: tuple[str, ...]
    origin_count: int
    guard: dict[str, Any] | None

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of the body, constants included."""
        return tuple(self.function)

    @property
    def inputs(self) -> tuple[ir.Value, ...]:
        """The runtime values that the call takes."""
        return _present(self.call.inputs[: len(self.call.inputs) - self.weights])

    @property
    def weight_inputs(self) -> tuple[ir.Value, ...]:
        """The weights that the call takes: initializers."""
        return _present(self.call.inputs[len(self.call.inputs) - self.weights :])

    @property
    def outputs(self) -> tuple[ir.Value, ...]:
        """The values that the call gives."""
        return tuple(self.call.outputs)


def _present(values: Sequence[ir.Value | None]) -> tuple[ir.Value, ...]:
    return tuple(value for value in values if value is not None)


def metadata(provider: str, weights: int, origin: Sequence[str], guard: dict[str, Any] | None = None) -> dict[str, str]:
    """What the metadata of a group's function say.

    Args:
        provider: The execution provider's full name.
        weights: How many of the last inputs are weights.
        origin: Names of the nodes that it stands for.
        guard: What must hold of the arguments.
    """
    said = {
        PROVIDER_KEY: provider,
        WEIGHTS_KEY: str(weights),
        ORIGIN_KEY: json.dumps([*origin[:MAX_ORIGINS], len(origin)]),
    }
    if guard is not None:
        said[GUARD_KEY] = json.dumps(guard, sort_keys=True)
    return said


def groups_of(model: ir.Model, token: CancellationToken = NEVER) -> list[Group]:
    """The groups of a model, in the order of their calls: those in subgraphs after the node before their holder.

    Args:
        model: A model; a plain one has none.
        token: Cancellation token.

    Raises:
        InvalidModelError: If a group is not as the format says: the message names it.
    """
    groups = list(_called(model, token))
    called = {group.function for group in groups}
    for function in model.functions.values():
        if function.domain == GROUP_DOMAIN and function not in called:
            raise InvalidModelError(f"nothing calls the group {quoted(function.name)}")
    return groups


def fault_of(model: ir.Model, token: CancellationToken = NEVER) -> str | None:
    """Why the calls of a model's groups are not as the format says; None where they are, or where it has no groups.

    A function that nothing calls any more is no fault: between two passes there may be some.

    Args:
        model: The model.
        token: Cancellation token.
    """
    if GROUP_DOMAIN not in model.opset_imports:
        return None
    try:
        for _ in _called(model, token):
            pass
    except InvalidModelError as error:
        return str(error)
    return None


def _called(model: ir.Model, token: CancellationToken) -> Iterator[Group]:
    """The groups that are called, in the order of their calls."""
    pending: list[Iterator[ir.Node]] = [iter(model.graph)]
    called: set[ir.OperatorIdentifier] = set()
    for node in token.checked(_deepest_first(pending)):
        if node.domain != GROUP_DOMAIN:
            pending.extend(iter(graph) for graph in reversed(list(subgraphs(node))))
            continue
        identifier = node.op_identifier()
        function = model.functions.get(identifier)
        if function is None:
            raise InvalidModelError(f"there is no function for the group {quoted(node.op_type)}")
        if identifier in called:
            raise InvalidModelError(f"the group {quoted(node.op_type)} is called twice")
        called.add(identifier)
        yield _read(function, node)


def _deepest_first(pending: list[Iterator[ir.Node]]) -> Iterator[ir.Node]:
    """What is left in the last of some iterators, which may become more meanwhile, and then in those before it."""
    while pending:
        node = next(pending[-1], None)
        if node is None:
            pending.pop()
        else:
            yield node


def _read(function: ir.Function, call: ir.Node) -> Group:
    where = f"the group {quoted(function.name)}"
    said = function.metadata_props
    for kind, given, own in (("inputs", call.inputs, function.inputs), ("outputs", call.outputs, function.outputs)):
        if len(given) != len(own):
            raise InvalidModelError(f"{where} has {len(own)} {kind}, and its call {len(given)}")
    try:
        provider = said[PROVIDER_KEY]
        weights = int(said[WEIGHTS_KEY])
        *origin, count = typed(parse_json(said.get(ORIGIN_KEY, "[0]")), list[str | Count])
        guard = parse_json(said[GUARD_KEY]) if GUARD_KEY in said else None
    except KeyError as error:
        raise InvalidModelError(f"{where} does not say its {error.args[0]}") from None
    except ValueError as error:
        raise InvalidModelError(f"{where} has metadata that cannot be read: {error}") from None
    if not 0 <= weights <= len(call.inputs):
        raise InvalidModelError(f"{where} has {len(call.inputs)} inputs, {weights} of them weights")
    if not isinstance(count, int) or not all(isinstance(name, str) for name in origin):
        raise InvalidModelError(f"{where} has metadata that cannot be read: {quoted(said[ORIGIN_KEY])}")
    if GUARD_KEY in said and not isinstance(guard, dict):
        raise InvalidModelError(f"{where} has a guard that is no object")
    return Group(function.name, provider, function, call, weights, tuple(map(str, origin)), count, guard)
