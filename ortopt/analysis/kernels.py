"""Which nodes an execution provider of ONNX Runtime can run, from tables that ship with ortopt.

Three answers: the provider has a kernel for the op and its types; ORT inserts casts (float16 on CPU is computed in
float); ORT expands the op, which is a function, into ops that it can run. The tables are ORT's own registry: asking
it live crashes the process in one common set-up (``tools.refresh_kernels`` knows how).

Each table says which release it is of (`release`). The CPU's is of the release that ortopt is tested with. CUDA's is of
an older one, from ORT's documentation, because asking takes a GPU: a kernel that came later is not made use of, and a
node whose kernel has gone is run on the CPU by ORT, inside the group's session.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir
from msgspec import Struct

from ortopt.semantics.domains import MICROSOFT

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"

_DATA = Path(__file__).with_name("data")
_FILES = {CPU: "kernels-cpu.json", CUDA: "kernels-cuda.json"}
_UNKNOWN = "?"
_HALF = "tensor(float16)"
_SINGLE = "tensor(float)"
# Contrib ops that ORT knows as functions; their bodies are not readable from Python. These ops decide.
_CONTRIB_BODIES = {"Gelu": ("Erf", "Mul"), "FastGelu": ("Tanh", "Mul"), "QuickGelu": ("Sigmoid", "Mul")}


class Support(enum.Enum):
    """How a provider runs a node."""

    KERNEL = "kernel"
    CAST = "cast"
    EXPANDED = "expanded"


class Schema(Struct, frozen=True):
    """What an op of one version takes and gives.

    Attributes:
        since: The opset that introduced this version.
        inputs: For each formal input its name and its type constraint (``T``) or type (``tensor(int64)``).
        outputs: The same for the formal outputs.
        constraints: The types that each constraint allows.
    """

    since: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    constraints: Mapping[str, frozenset[str]]


class Form(Struct, frozen=True):
    """What nodes of an op of one version look like.

    Attributes:
        least_inputs: How many inputs they have at least.
        most_inputs: How many at most.
        attributes: The names of the attributes that they may have.
    """

    least_inputs: int
    most_inputs: int
    attributes: frozenset[str]


class Rule(Struct, frozen=True):
    """A kernel that is registered.

    Attributes:
        first: The first version of the op that it serves.
        last: The last one; None where it has no end.
        types: The types that it takes, by constraint or formal parameter.
    """

    first: int
    last: int | None
    types: Mapping[str, frozenset[str]]

    def holds_at(self, since: int) -> bool:
        """As in ORT: a kernel without end serves only the version of the op that it was written for."""
        return self.first == since if self.last is None else self.first <= since <= self.last


class _Kernels(Struct, frozen=True):
    version: str
    max_opset: int
    rules: Mapping[tuple[str, str], tuple[Rule, ...]]


class Signature(Struct, frozen=True):
    """The types of a node's arguments: None where the argument is missing, ``?`` where its type is unknown."""

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]

    def replaced(self, old: str, new: str) -> Signature:
        """The same with another type in the place of one."""
        return Signature(*(tuple(new if one == old else one for one in some) for some in (self.inputs, self.outputs)))


def summary(node: ir.Node, opset: int) -> tuple[Any, ...]:
    """A node's op and the types of its arguments, as a key: in small integers, as graphs of 100,000 nodes ask for it.

    Args:
        node: The node.
        opset: The opset of its domain there.
    """
    key: list[Any] = [node.domain, node.op_type, opset]
    for value in node.inputs:
        if value is None:
            key.append(None)
            continue
        type_ = value.type
        key.append(type_.dtype if type(type_) is ir.TensorType else str(type_))
    key.append("=>")
    for value in node.outputs:
        type_ = value.type
        key.append((type_.dtype if type(type_) is ir.TensorType else str(type_)) if value.name != "" else None)
    return tuple(key)


def signature(node: ir.Node) -> Signature:
    """The types of a node's arguments.

    Args:
        node: The node.
    """
    return Signature(
        tuple(None if value is None else _type_of(value) for value in node.inputs),
        tuple(None if value.name == "" else _type_of(value) for value in node.outputs),
    )


class _Op(Struct, frozen=True):
    """An op of an opset; ``proto`` gives the node where its attributes matter."""

    domain: str
    name: str
    opset: int
    proto: Callable[[], onnx.NodeProto]


_ANSWERS: dict[tuple[Any, ...], Support | None] = {}
_ASKS_ATTRIBUTES: set[tuple[Any, ...]] = set()
"""Signatures for which the attributes decide too: what an op is expanded into may hang on them."""


def release(provider: str) -> str:
    """The release of ONNX Runtime that a provider's table is of; empty where there is no table."""
    return _kernels(provider).version


def support(provider: str, node: ir.Node, opset: int) -> Support | None:
    """How ``provider`` runs ``node``, or None where it does not.

    A node with subgraphs is asked about by itself: its subgraphs' nodes are questions of their own. A type that is not
    known answers None, unless every type that the op allows there has a kernel.

    Args:
        provider: An execution provider's full name.
        node: The node; its domain may be any.
        opset: The opset of the node's domain that holds where the node stands.
    """
    known = (provider, *summary(node, opset))
    try:
        return _ANSWERS[known]
    except KeyError:
        pass
    return _answer(provider, node, opset, signature(node), known)


def support_of(
    provider: str, node: ir.Node, opset: int, inputs: Sequence[str | None], outputs: Sequence[str | None]
) -> Support | None:
    """As `support`, with the types given: ``tensor(float)``, ``?`` for unknown, None for a missing argument."""
    known = (provider, node.domain, node.op_type, opset, *inputs, "->", *outputs)
    if known in _ANSWERS:
        return _ANSWERS[known]
    return _answer(provider, node, opset, Signature(tuple(inputs), tuple(outputs)), known)


def _answer(provider: str, node: ir.Node, opset: int, types: Signature, known: tuple[Any, ...]) -> Support | None:
    """The answer for a signature that is not known, or for which the attributes decide too."""
    op = _Op(node.domain, node.op_type, opset, lambda: ir.serde.serialize_node(node))
    if known not in _ASKS_ATTRIBUTES:
        if _direct(provider, op, types) or _body(op, types) is None:
            return _ANSWERS.setdefault(known, _decide(provider, op, types))
        _ASKS_ATTRIBUTES.add(known)
    known += tuple(sorted((one.name, _content(one)) for one in node.attributes.values()))
    if known not in _ANSWERS:
        _ANSWERS[known] = _decide(provider, op, types)
    return _ANSWERS[known]


def _content(attribute: ir.Attr) -> bytes:
    """What an attribute says, to be compared."""
    if attribute.is_ref():
        return b""
    content: bytes = ir.serde.serialize_attribute(attribute).SerializeToString()
    return content


def has_kernel(provider: str, domain: str, op: str, opset: int, types: Mapping[str, str]) -> bool:
    """Whether ``provider`` has a kernel of its own for an op with these types.

    Args:
        provider: An execution provider's full name.
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        opset: The opset of that domain.
        types: The type (``tensor(float16)``) of each type constraint of the op (``T``); one that is left out is not
            asked about.
    """
    return any(
        all(types[name] in allowed for name, allowed in rule.types.items() if name in types)
        for rule in _rules(provider, domain, op, opset)
    )


@functools.cache
def schema(domain: str, op: str, opset: int) -> Schema | None:
    """The op's schema at an opset of its domain, or None where neither onnx nor ONNX Runtime defines it."""
    own = max((one for one in _ort_schemas().get((domain, op), ()) if one.since <= opset), key=_since, default=None)
    official = official_schema(domain, op, opset)
    if official is None or (own is not None and own.since > official.since_version):
        return own
    return Schema(
        official.since_version,
        tuple((formal.name, formal.type_str) for formal in official.inputs),
        tuple((formal.name, formal.type_str) for formal in official.outputs),
        {one.type_param_str: frozenset(one.allowed_type_strs) for one in official.type_constraints},
    )


def is_official(domain: str, op: str, opset: int) -> bool:
    """Whether the ONNX specification defines an op at an opset of its domain.

    Args:
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        opset: The opset of that domain.
    """
    return official_schema(domain, op, opset) is not None


@functools.cache
def official_form(domain: str, op: str, opset: int) -> Form | None:
    """What the ONNX specification lets nodes of an op look like; None where it does not define the op.

    Args:
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        opset: The opset of that domain.
    """
    official = official_schema(domain, op, opset)
    if official is None:
        return None
    return Form(official.min_input, official.max_input, frozenset(official.attributes))


@functools.cache
def is_function(domain: str, op: str, opset: int) -> bool:
    """Whether ONNX Runtime expands an op where it has no kernel.

    Args:
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        opset: The opset of that domain.
    """
    official = official_schema(domain, op, opset)
    if official is None:
        return domain == MICROSOFT and op in _CONTRIB_BODIES
    return bool(official.has_function or official.has_context_dependent_function)


def is_defined_alike(domain: str, op: str, one: int, other: int) -> bool:
    """Whether two opsets of a domain have the same version of an op.

    Args:
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        one: An opset of that domain.
        other: Another.
    """
    first, second = official_schema(domain, op, one), official_schema(domain, op, other)
    return first is not None and second is not None and first.since_version == second.since_version


def _since(schema: Schema) -> int:
    return schema.since


def _type_of(value: ir.Value) -> str:
    return _UNKNOWN if value.type is None else type_string(value.type)


_TENSORS: dict[ir.DataType, str] = {
    dtype: f"tensor({dtype.name.lower()})" for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED
}


def type_string(type_: ir.TypeProtocol) -> str:
    """ONNX's spelling of a type, e.g. ``seq(tensor(float))``; ``?`` where an element type is undefined."""
    if type(type_) is ir.TensorType:  # nearly all are, and to ask for another class takes long
        return _TENSORS.get(type_.dtype, _UNKNOWN)
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        inner = type_string(type_.elem_type)
        if inner == _UNKNOWN:
            return _UNKNOWN
        return f"{'seq' if isinstance(type_, ir.SequenceType) else 'optional'}({inner})"
    if type_.dtype == ir.DataType.UNDEFINED:
        return _UNKNOWN
    sparse = "sparse_" if isinstance(type_, ir.SparseTensorType) else ""
    return f"{sparse}tensor({type_.dtype.name.lower()})"


def _decide(provider: str, op: _Op, types: Signature) -> Support | None:
    if op.domain == "" and op.opset > _kernels(provider).max_opset:
        return None  # ORT does not load the model
    if (op.domain == "" and op.name == "Constant") or _direct(provider, op, types):
        return Support.KERNEL
    if op.domain == MICROSOFT and op.name in _CONTRIB_BODIES:
        return _contrib_function(provider, op, types)
    body = _body(op, types)
    if body is not None:  # once it is expanded there is no way back to casts
        return Support.EXPANDED if _expands(provider, op, types, body) else None
    if provider != CPU or _HALF not in types.inputs:
        return None
    return Support.CAST if _direct(provider, op, types.replaced(_HALF, _SINGLE)) else None


def _direct(provider: str, op: _Op, types: Signature) -> bool:
    rules = _rules(provider, op.domain, op.name, op.opset)
    if not rules:
        return False
    known = schema(op.domain, op.name, op.opset)
    return known is not None and _allows(known, types) and any(accepts(rule, known, types) for rule in rules)


def _allows(known: Schema, types: Signature) -> bool:
    """Whether the op is defined for the types: some kernels are registered for more than ORT lets a model have."""
    return all(
        actual is None
        or actual == _UNKNOWN
        or declared not in known.constraints
        or actual in known.constraints[declared]
        for formals, actuals in ((known.inputs, types.inputs), (known.outputs, types.outputs))
        for (_, declared), actual in zip(formals, actuals, strict=False)
    )


def accepts(rule: Rule, known: Schema, types: Signature) -> bool:
    """Whether a kernel takes these types.

    Args:
        rule: The kernel.
        known: The op's schema.
        types: The types.
    """
    for name, allowed in rule.types.items():
        argument = _first_argument(name, known, types)
        if argument is None:
            continue
        actual, declared = argument
        if actual != _UNKNOWN:
            if actual not in allowed:
                return False
        elif not known.constraints.get(declared, frozenset((declared,))) <= allowed:
            return False
    return True


def _first_argument(name: str, known: Schema, types: Signature) -> tuple[str, str] | None:
    """Type and declared constraint of the first argument present that a kernel's constraint is about.

    ORT looks at the first only, inputs before outputs; a constraint may bear a constraint's name or a formal
    parameter's.
    """
    for formals, actuals in ((known.inputs, types.inputs), (known.outputs, types.outputs)):
        for (formal, declared), actual in zip(formals, actuals, strict=False):
            if actual is not None and name in (declared, formal):
                return actual, declared
    return None


def _contrib_function(provider: str, op: _Op, types: Signature) -> Support | None:
    first = next((one for one in types.inputs if one is not None), _UNKNOWN)
    if first == _UNKNOWN:
        return None
    parts = (
        _decide(provider, _Op("", part, 13, onnx.NodeProto), Signature((first,), (first,)))
        for part in _CONTRIB_BODIES[op.name]
    )
    return Support.EXPANDED if all(parts) else None


def _expands(provider: str, op: _Op, types: Signature, body: onnx.FunctionProto) -> bool:
    """Whether every node of the function's body can be run, with the types that follow from the arguments'."""
    if _UNKNOWN in types.inputs:
        return False
    official = official_schema(op.domain, op.name, op.opset)
    graph = onnx.GraphProto(name="body")
    for formal, actual in zip(body.input, types.inputs, strict=False):
        if actual is not None:
            graph.input.add(name=formal).type.CopyFrom(_type_proto(actual))
    given = {one.name for one in graph.input}
    # What the caller of a function decides is not known: the default stands for it.
    attributes = {one.name: one for one in op.proto().attribute if not one.ref_attr_name}
    defaults = {name: one.default_value for name, one in official.attributes.items() if one.default_value.name}
    for inner in body.node:
        added = graph.node.add()
        added.CopyFrom(inner)
        added.input[:] = [name if name not in body.input or name in given else "" for name in inner.input]
        del added.attribute[:]
        for attribute in inner.attribute:
            actual_attribute = attributes.get(attribute.ref_attr_name) or defaults.get(attribute.ref_attr_name)
            if not attribute.ref_attr_name:
                added.attribute.add().CopyFrom(attribute)
            elif actual_attribute is not None:
                one = added.attribute.add()
                one.CopyFrom(actual_attribute)
                one.name = attribute.name
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=body.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:  # a body that imports no opset of a domain it uses, for one
        return False
    of = {one.name: _proto_type(one.type) for one in (*inferred.input, *inferred.value_info)}
    of.update(zip(body.output, (one or _UNKNOWN for one in types.outputs), strict=False))
    opsets = {one.domain: one.version for one in body.opset_import} | {op.domain: op.opset}
    return all(
        _decide(
            provider,
            _Op(inner.domain, inner.op_type, opsets.get(inner.domain, 1), lambda inner=inner: inner),  # type: ignore[misc]
            Signature(
                tuple(of.get(name, _UNKNOWN) if name else None for name in inner.input),
                tuple(of.get(name, _UNKNOWN) if name else None for name in inner.output),
            ),
        )
        is not None
        for inner in graph.node
    )


def _body(op: _Op, types: Signature) -> onnx.FunctionProto | None:
    """The op's definition as a function that serves at its opset: the newest that is not newer; None without one."""
    official = official_schema(op.domain, op.name, op.opset)
    if official is None or not (official.has_function or official.has_context_dependent_function):
        return None
    version = max((one for one in official.function_opset_versions if one <= op.opset), default=None)
    if version is not None:
        content: bytes = official.get_function_with_opset_version(version)
        return _function(content)
    version = max((one for one in official.context_dependent_function_opset_versions if one <= op.opset), default=None)
    if version is None or _UNKNOWN in types.inputs:
        return None
    protos = [(onnx.TypeProto() if one is None else _type_proto(one)).SerializeToString() for one in types.inputs]
    node = op.proto().SerializeToString()
    content = official.get_context_dependent_function_with_opset_version(version, node, protos)
    return _function(content) if content else None


def _function(text: bytes) -> onnx.FunctionProto:
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function


def _type_proto(text: str) -> onnx.TypeProto:
    proto = onnx.TypeProto()
    kind, inner = text.removesuffix(")").split("(", 1)
    if kind == "seq":
        proto.sequence_type.elem_type.CopyFrom(_type_proto(inner))
    elif kind == "optional":
        proto.optional_type.elem_type.CopyFrom(_type_proto(inner))
    else:
        proto.tensor_type.elem_type = onnx.TensorProto.DataType.Value(inner.upper())
    return proto


def _proto_type(proto: onnx.TypeProto) -> str:
    return type_string(ir.serde.deserialize_type_proto_for_type(proto) or ir.TensorType(ir.DataType.UNDEFINED))


_NEWEST = 2**31 - 1  # of what the registry of schemas can be asked for


@functools.cache
def official_schema(domain: str, op: str, opset: int) -> Any:
    """The OpSchema of onnx (its type stubs leave out what functions need), or None where it does not define the op.

    Args:
        domain: The op's domain, ``""`` for ai.onnx.
        op: The op's type.
        opset: The opset of that domain.
    """
    try:
        return onnx.defs.get_schema(op, min(opset, _NEWEST), domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _rules(provider: str, domain: str, op: str, opset: int) -> tuple[Rule, ...]:
    known = schema(domain, op, opset)
    rules = _kernels(provider).rules.get((domain, op), ())
    return () if known is None else tuple(rule for rule in rules if rule.holds_at(known.since))


@functools.cache
def _kernels(provider: str) -> _Kernels:
    file = _FILES.get(provider)
    if file is None:  # a provider that we have no table of supports nothing that we know of
        return _Kernels("", 0, {})
    data = json.loads((_DATA / file).read_bytes())
    sets = type_sets(data)
    rules = {(domain, op): rules_of(rows, sets) for domain, ops in data["kernels"].items() for op, rows in ops.items()}
    return _Kernels(data["version"], data["max_opset"], rules)


def rules_of(rows: Sequence[Any], sets: Sequence[frozenset[str]]) -> tuple[Rule, ...]:
    """The kernels of an op, as a table has them.

    Args:
        rows: First and last version, and a set of types by constraint.
        sets: The table's sets (`type_sets`).
    """
    return tuple(Rule(first, last, {name: sets[index] for name, index in types.items()}) for first, last, types in rows)


@functools.cache
def _ort_schemas() -> Mapping[tuple[str, str], tuple[Schema, ...]]:
    data = json.loads((_DATA / "schemas-ort.json").read_bytes())
    sets = type_sets(data)

    def formals(rows: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
        return tuple((name, declared) for name, declared in rows)

    return {
        (domain, op): tuple(
            Schema(since, formals(inputs), formals(outputs), {name: sets[index] for name, index in types.items()})
            for since, inputs, outputs, types in rows
        )
        for domain, ops in data["schemas"].items()
        for op, rows in ops.items()
    }


def type_sets(data: Mapping[str, Any]) -> list[frozenset[str]]:
    """The sets of types of a table.

    Args:
        data: The table.
    """
    names = data["types"]
    return [frozenset(names[index] for index in one) for one in data["sets"]]
