"""What is known of the runtimes that a result may be for (``--target``): their ops, opsets and conditions.

``data/targets.json`` declares each, with its source. Of runtimes that have been run, ``data/target-ops.json`` says how
many of ONNX's own tests of each op were right there (``python -m tools.probe_targets``).
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir
from msgspec import Struct, convert, field

from ortopt.analysis.providers import CPU, CUDA
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.graph.match import is_constant, is_op, users
from ortopt.options import Target
from ortopt.semantics.nodes import constant_tensor

DECLARATIONS: Final = Path(__file__).parent / "data" / "targets.json"
OPS: Final = Path(__file__).parent / "data" / "target-ops.json"
NOT_RUN: Final = "not run"
SWAPPED: Final = (0, 2, 1, 3)
"""A Transpose between [batch, positions, heads, size] and [batch, heads, positions, size]."""


class Tested(Struct, frozen=True):
    """A form of an op in ONNX's tests.

    Attributes:
        attributes: Those of the op that are no lists of numbers and no sizes, as given or by default.
        dtype: The type of its first input.
        right: How many of the tests were right.
        tests: How many there are.
        given: Which inputs and outputs are given, as `form_places` writes them; None where that was not noted.
    """

    attributes: Mapping[str, str | int | float]
    dtype: str
    right: int
    tests: int
    given: str | None = None


class Declaration(Struct, frozen=True, kw_only=True):
    """A runtime, as far as it decides about results.

    Attributes:
        title: What people call it.
        providers: Execution providers of ONNX Runtime that run models there.
        source: Where this is from.
        measured: Whether the runtime itself was run; else its documentation was read.
        opset: The newest opset of ai.onnx that it reads; None is not known.
        release: Its newest release, where it is an ONNX Runtime that is released apart.
        has: The ops of ai.onnx that it runs; None are all but `lacks`.
        lacks: Ops of ai.onnx that it does not run.
        slow: Ops of ai.onnx that are slower there than what they stand for, as measured.
        partly: Ops of ai.onnx of which not all of ONNX's tests, or of our passes' examples, were right there; older
            forms of them may be.
        forms: Of some of these ops, the forms that were tested: those are right that were right for their type, and of
            floats, for which passes' examples run there, those that were right for other types.
        fixed_sizes: Whether it runs models of fixed sizes only.
        reads_empty_constants: Whether constants without elements have the shape there that they have in the file.
        closed: Ops of ai.onnx whose bodies may not read there what is computed outside of them.
        closed_to_outputs: Ops of ai.onnx in whose bodies outputs of a graph around them are misread there.
        mistakes_heads: Whether it takes heads for positions in some attentions that have as many of both.
        slow_padding: From so many zeros on a convolution's own padding is slower there than a Pad; None is never.
    """

    title: str
    providers: tuple[str, ...]
    source: str
    measured: bool
    opset: int | None = None
    release: str | None = None
    has: frozenset[str] | None = None
    lacks: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()
    forms: Mapping[str, tuple[Tested, ...]] = field(default_factory=dict)
    fixed_sizes: bool = False
    reads_empty_constants: bool = True
    closed: frozenset[str] = frozenset()
    closed_to_outputs: frozenset[str] = frozenset()
    mistakes_heads: bool = False
    slow_padding: int | None = None

    def runs(self, node: ir.Node) -> bool:
        """Whether it runs a node of ai.onnx, by its op; what it does with other domains is not known.

        Args:
            node: A node.
        """
        if node.domain or node.op_type == "Constant":
            return True
        return node.op_type not in self.lacks and (self.has is None or node.op_type in self.has)

    def reads(self, value: ir.Value | None) -> bool:
        """Whether it takes a value for what it is: what is no constant, or a constant that has the same shape there.

        Args:
            value: A value; None is an input that is left out.
        """
        if self.reads_empty_constants:
            return True
        tensor = constant_tensor(value)
        return tensor is None or bool(tensor.size)

    def fault(self, node: ir.Node) -> str:
        """What is wrong with a node's op there, in words; empty where it runs all its forms, right and fast.

        Args:
            node: A node.
        """
        if not self.runs(node):
            return NOT_RUN
        if node.domain:
            return ""
        if node.op_type in self.slow:
            return "slow"
        return "not always right" if node.op_type in self.partly and not self._is_right(node) else ""

    def _is_right(self, node: ir.Node) -> bool:
        """Whether a form of an op that is not always right was right in all tests."""
        import onnx  # few runs ask

        forms = self.forms.get(node.op_type, ())
        is_known = bool(forms) and onnx.defs.has(node.op_type)  # an older onnx may not have it
        if not is_known or any(one.is_ref() for one in node.attributes.values()):
            return False
        given = {name: one.value for name, one in node.attributes.items()}
        attributes = form_attributes(node.op_type, given)
        places = form_places(
            node.op_type, [value is not None for value in node.inputs], [value.name != "" for value in node.outputs]
        )
        alike = _with_places([one for one in forms if one.attributes == attributes], places)
        dtype = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
        own = [tested for tested in alike if dtype is not None and tested.dtype == dtype.name.lower()]
        if not own and dtype != ir.DataType.FLOAT:
            return False
        return bool(alike) and all(tested.right == tested.tests for tested in own or alike)


def _with_places(tested: Sequence[Tested], given: str) -> list[Tested]:
    """The tests in which the same inputs and outputs are given; else those in which these are, and few others."""
    same = [one for one in tested if one.given in (given, None)]
    more = [one for one in tested if _places(given) < _places(one.given or "")]
    least = min((len(_places(one.given or "")) for one in more), default=0)
    return same or [one for one in more if len(_places(one.given or "")) == least]


def _places(given: str) -> set[tuple[int, int]]:
    return {
        (side, place)
        for side, letters in enumerate(given.split(">"))
        for place, letter in enumerate(letters)
        if letter == "x"
    }


_SIZES: Final = frozenset({"hidden_size"})


def form_attributes(op_type: str, given: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The attributes of an op of ai.onnx that are no lists of numbers, those that are left out by their defaults.

    Args:
        op_type: The op.
        given: Attributes by name, texts also as bytes.
    """
    import onnx

    schema = onnx.defs.get_schema(op_type)
    defaults = {
        name: onnx.helper.get_attribute_value(one.default_value)
        for name, one in schema.attributes.items()
        if one.default_value.type
    }
    texts = {name: _text(value) for name, value in {**defaults, **given}.items() if name in schema.attributes}
    return {
        name: value
        for name, value in sorted(texts.items())
        if isinstance(value, str | int | float) and name not in _SIZES
    }


def _text(value: Any) -> Any:
    """An attribute, as a text where it is one or several."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        several = all(isinstance(one, str | bytes) for one in value)
        return ", ".join(map(_text, value)) if several and value else value
    return value.decode() if isinstance(value, bytes) else value


def form_places(op_type: str, inputs: Sequence[bool], outputs: Sequence[bool]) -> str:
    """Which inputs and outputs of an op of ai.onnx are given: a letter for each, a dash for one that is left out.

    Args:
        op_type: The op; of one that takes any number of inputs several are as two.
        inputs: Whether each is given.
        outputs: So for the outputs.
    """
    import onnx

    before, behind = ("".join("x" if one else "-" for one in places).rstrip("-") for places in (inputs, outputs))
    formal = onnx.defs.get_schema(op_type).inputs
    takes_any = bool(formal) and formal[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return f"{before[: len(formal) + 1] if takes_any else before}>{behind}"


def of(target: Target) -> Declaration | None:
    """What is declared of a target; None of ONNX Runtime here, and of any runtime.

    Args:
        target: The target.
    """
    return None if target in (Target.ORT, Target.ONNX) else _declared()[target]


@functools.cache
def closed(target: Target) -> frozenset[str]:
    """Ops of ai.onnx whose bodies may not read what is computed outside of them: of any runtime, where it may be any.

    Args:
        target: The target.
    """
    return frozenset().union(*(one.closed for one in _meant(target)))


@functools.cache
def closed_to_outputs(target: Target) -> frozenset[str]:
    """Ops of ai.onnx in whose bodies outputs of a graph around them are misread: by any runtime, where it may be any.

    Args:
        target: The target.
    """
    return frozenset().union(*(one.closed_to_outputs for one in _meant(target)))


def is_slow_padding(target: Target, zeros: int) -> bool:
    """Whether a Pad is faster than so much padding of a convolution: on any runtime, where it may be any.

    Args:
        target: The target.
        zeros: How many zeros, at one end of an axis.
    """
    return any(one.slow_padding is not None and zeros >= one.slow_padding for one in _meant(target))


def misread(graphs: Iterable[ir.Graph], ops: Collection[str]) -> frozenset[str]:
    """Names of what graphs output, inputs apart, that is read in bodies of ops.

    Args:
        graphs: The graphs of a model; `scope.attach` has seen it.
        ops: Ops of ai.onnx.
    """
    return frozenset(
        value.name or ""
        for graph in graphs
        for value in graph.outputs
        if not value.is_graph_input()
        for use in value.uses()
        if use.node.graph not in (graph, None) and _stands_below(use.node, graph, ops)  # None: a rewrite builds it
    )


@functools.cache
def mistakes_heads(target: Target) -> bool:
    """Whether heads of attentions are taken for positions: by any runtime, where it may be any.

    Args:
        target: The target.
    """
    return any(one.mistakes_heads for one in _meant(target))


def mistaken(nodes: Iterable[ir.Node]) -> frozenset[str]:
    """Names of the probabilities of attentions whose heads OpenVINO takes for positions.

    Where there are as many of both, it looks at the Transposes that put heads before positions: it goes wrong where
    either the queries come through one, or the result goes through one, and not both. Sizes that are open are taken
    right.

    Args:
        nodes: Nodes of graphs; those that are no Softmax do not count.
    """
    names = set[str]()
    for node in nodes:
        shape = node.outputs[0].shape if is_op(node, "Softmax") else None
        if shape is None or len(shape) != len(SWAPPED):
            continue
        heads, positions = shape[1], shape[2]
        if isinstance(heads, int) and heads == positions != 1 and _is_mistaken(node):
            names.add(node.outputs[0].name or "")
    return frozenset(names)


def _is_mistaken(softmax: ir.Node) -> bool:
    product = next((user for user in users(softmax.outputs[0]) if is_op(user, "MatMul")), None)
    scores = _before(softmax.inputs[0], "Add", "Div", "Mul", "Where")
    if product is None or not is_op(scores, "MatMul"):
        return False
    return _swaps(_before(scores.inputs[0], "Div", "Mul")) != any(map(_swaps, users(product.outputs[0])))


def _before(value: ir.Value | None, *through: str) -> ir.Node | None:
    """What computes a value before a chain of elementwise ops: of two operands, the one that is no constant."""
    node = None if value is None else value.producer()
    while is_op(node, *through):
        value = next((one for one in node.inputs if one is not None and one.producer() and not is_constant(one)), None)
        node = None if value is None else value.producer()
    return node


def _swaps(node: ir.Node | None) -> bool:
    """Whether a node changes the places of the two axes in the middle."""
    return is_op(node, "Transpose") and node.attributes.get_ints("perm", ()) == SWAPPED


def _stands_below(node: ir.Node, graph: ir.Graph, ops: Collection[str]) -> bool:
    """Whether a node stands in a body of an op that is in a graph or below it."""
    for owner in scope.around(scope.graph_of(node)):
        if not owner.domain and owner.op_type in ops:
            return True
        if owner.graph is graph:
            break
    return False


def implied(providers: Sequence[str]) -> Target:
    """The target of a run that names none: of the first provider whose kernels are not known here.

    Args:
        providers: Full names, the preferred one first.
    """
    for provider in providers:
        if provider not in (CPU, CUDA):
            found = (target for target, one in _declared().items() if provider in one.providers)
            return next(found, Target.ONNX)
    return Target.ORT


def providers_of(target: Target) -> tuple[str, ...]:
    """Full names of ONNX Runtime's execution providers, but the CPU's and CUDA's, that run what is for a target.

    Args:
        target: The target.
    """
    declared = of(target)
    return () if declared is None else declared.providers


def check(target: Target, providers: Iterable[str]) -> None:
    """Refuse providers that do not belong to a target.

    Args:
        target: The target that was asked for.
        providers: Full names.

    Raises:
        UsageError: If one is not the target's.
    """
    declared = of(target)
    for provider in providers:
        if declared is not None and provider not in (CPU, *declared.providers):
            raise UsageError(f"{provider} does not run what is for {declared.title} (target {target.value})")


def described(target: Target) -> dict[str, str] | None:
    """A target as a report has it; None of ONNX Runtime here.

    Args:
        target: The target.
    """
    declared = of(target)
    if declared is None:
        known = "is ONNX's specification"
        return None if target is Target.ORT else {"target": target.value, "runtime": "any runtime", "known": known}
    known = f"was {'measured' if declared.measured else 'read'}: {declared.source}"
    return {"target": target.value, "runtime": declared.title, "known": known}


def unmet(model: ir.Model, declared: Declaration) -> list[str]:
    """Why a runtime does not take a model, or not all of it: each reason once.

    Args:
        model: The model.
        declared: What is declared of the runtime.
    """
    reasons = []
    version = model.opset_imports.get("")
    if declared.opset is not None and version is not None and version > declared.opset:
        reasons.append(f"{declared.title} reads opsets up to {declared.opset}, and the model is of {version}")
    counts = Counter(node.op_type for node in model.graph.all_nodes() if not declared.runs(node))
    if counts:
        named = ", ".join(f"{op} ({count})" for op, count in sorted(counts.items()))
        reasons.append(f"{declared.title} does not run {named}")
    if declared.closed_to_outputs:
        listed = ", ".join(sorted(misread(scope.graphs(model), declared.closed_to_outputs)))
        if listed:
            reasons.append(f"{declared.title} reads outputs of the model wrongly in branches: {listed}")
    if declared.mistakes_heads:
        listed = ", ".join(sorted(mistaken(model.graph.all_nodes())))
        if listed:
            reasons.append(f"{declared.title} takes heads for positions in attentions with as many of both: {listed}")
    shapes = [value.shape for value in model.graph.inputs if value.name not in model.graph.initializers]
    names = dict.fromkeys(
        str(dim) for shape in shapes if shape is not None for dim in shape if not isinstance(dim, int)
    )
    if declared.fixed_sizes and names:
        how = ",".join(f"{name}=SIZE" for name in names)
        reasons.append(f"{declared.title} runs models of fixed sizes only (--dim {how})")
    return reasons


def _meant(target: Target) -> Iterable[Declaration]:
    """What is declared of the runtimes that a result may be for."""
    declared = of(target)
    if declared is not None:
        return (declared,)
    return _declared().values() if target.keeps_to_onnx else ()


@functools.cache
def _declared() -> dict[Target, Declaration]:

    declared: dict[str, dict[str, Any]] = json.loads(DECLARATIONS.read_text(encoding="utf-8"))
    measured: dict[str, Any] = json.loads(OPS.read_text(encoding="utf-8"))
    for name, entry in declared.items():
        if name in measured:
            wrong = [op for op, (right, tests) in measured[name]["ops"].items() if right < tests]
            stated = entry.get("partly", ())
            entry["partly"] = [*stated, *wrong]
            entry["forms"] = {op: one for op, one in measured[name].get("forms", {}).items() if op not in stated}
            entry["title"] = measured[name]["runtime"]
    return {Target(name): convert(entry, Declaration) for name, entry in declared.items()}
