"""Which provider runs a node, and whether a new node is defined, and has a kernel, where it is to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.analysis import kernel_history, kernels, releases, targets, weight_rounding
from ortopt.analysis.kernel_history import Release
from ortopt.graph import scope
from ortopt.graph.index import OpIndex, op_key
from ortopt.graph.refusal import Conflict, NoKernel
from ortopt.options import Options, TransformerLevel
from ortopt.semantics import DEQUANTIZERS, STANDARD_DOMAINS

NEWEST_OPSET = 26  # that the shipped tables of kernels know
CONTRIB_VERSION = 1  # of every domain of ONNX Runtime's own that a model may not import yet
_DEQUANTIZERS = frozenset(op_key(domain, op) for domain, op in DEQUANTIZERS)


def provider_of(node: ir.Node, providers: Sequence[str]) -> str | None:
    """The first provider that can run a node, or None.

    Args:
        node: A node of a graph.
        providers: Execution providers, in order of preference.
    """
    version = scope.of_node(node).opset_imports.get(node.domain, 1)
    for provider in providers:
        if kernels.support(provider, node, version) is not None:
            return provider
    return None


def meant_providers(options: Options) -> tuple[str, ...]:
    """The providers that the result of a run is for: computing in 16 bits is for a GPU, wherever it is verified.

    Args:
        options: Options of the run.
    """
    on_request = (kernels.CUDA,) if options.float16 or options.bfloat16 else ()
    return tuple(dict.fromkeys((*options.providers, *on_request)))


def check_defined(
    node: ir.Node, model: ir.Model, produces: Sequence[tuple[str, str]], level: TransformerLevel, options: Options
) -> None:
    """Refuse a new node of an op that the level, the target or the model's opset does not have.

    Args:
        node: The new node, in its graph.
        model: The model.
        produces: The ops outside ai.onnx that its transformer declares.
        level: The level.
        options: Options of the run.

    Raises:
        Conflict: If there is no such op.
        ValueError: If the transformer does not declare it.
    """
    if node.op_identifier() in model.functions:
        return
    where = scope.of_node(node)
    version = where.opset_imports.get(node.domain, CONTRIB_VERSION)
    if kernels.is_official(node.domain, node.op_type, version):
        _check_alike(node, version, model.opset_imports.get(node.domain, version))
        return
    if (node.domain, node.op_type) not in produces:
        if node.domain in STANDARD_DOMAINS:
            raise NoKernel(f"opset {version} has no {node.op_type}{_since(node, version)}")
        raise ValueError(f"it made a {node.domain} {node.op_type}, which it does not declare (produces)")
    if level == TransformerLevel.LEVEL1 or options.target.keeps_to_onnx:
        stays = f"--target {options.target.value} keeps to it"
        why = stays if options.target.keeps_to_onnx else "level 1 keeps to it, -O2 does not"
        raise NoKernel(f"{node.op_type} is no op of the ONNX specification: {why}")
    least = releases.least(options)
    if kernel_history.of_op(node.domain, node.op_type) > least:
        raise _too_new(node, kernel_history.of_op(node.domain, node.op_type), least, "")


def _too_new(node: ir.Node, needed: Release, least: Release, form: str) -> NoKernel:
    allowed = f"--min-onnxruntime {releases.shown(needed)} allows it"
    return NoKernel(f"ONNX Runtime {releases.shown(least)} has no {node.op_type}{form}: {allowed}")


def check_release(node: ir.Node, replaced: Iterable[ir.Node], options: Options) -> None:
    """Refuse a new node that a release which the result is for does not compute, or computes wrongly.

    What the replaced nodes need already is no reason: then that release has not run the original either.

    Args:
        node: The new node, in its graph.
        replaced: The nodes in the place of which it stands.
        options: Options of the run.

    Raises:
        Conflict: If there is such a release.
    """
    least = releases.least(options)
    if not kernel_history.is_listed(node):
        return
    imports = scope.of_node(node).opset_imports
    on_cpu = provider_of(node, meant_providers(options)) == kernels.CPU

    def needs(one: ir.Node) -> Release:
        return kernel_history.first_release(one, imports.get(one.domain, CONTRIB_VERSION), on_cpu=on_cpu)

    needed = needs(node)
    if needed > least and not any(needs(old) >= needed for old in replaced):
        raise _too_new(node, needed, least, " of this form")


def check_target(node: ir.Node, replaced: Iterable[ir.Node], options: Options) -> None:
    """Refuse a new node that the runtime which the result is for does not run right and fast, in place of such.

    Args:
        node: The new node, in its graph.
        replaced: The nodes in the place of which it stands.
        options: Options of the run.

    Raises:
        Conflict: If it is one.
    """
    declared = targets.of(options.target)
    if declared is None:
        return
    replaced, target = list(replaced), options.target.value
    unread = [value for value in node.inputs if not declared.reads(value)]
    if unread and all(declared.reads(value) for old in replaced for value in old.inputs):
        raise NoKernel(f"{declared.title} reads a constant without elements as a scalar (--target {target})")
    known = any(old.op_type == node.op_type and old.domain == node.domain for old in replaced)
    what = declared.fault(node)
    if what and not known and not {what, targets.NOT_RUN}.intersection(map(declared.fault, replaced)):
        raise NoKernel(f"{node.op_type} is {what} on {declared.title} (--target {target})")


def check_constants(replacements: Mapping[ir.Value, ir.Value], options: Options) -> None:
    """Refuse constants of which the runtime that the result is for reads another shape, in place of computed values.

    Args:
        replacements: Old value to new value.
        options: Options of the run.

    Raises:
        Conflict: If one is.
    """
    declared = targets.of(options.target)
    if declared is None or all(declared.reads(new) or not declared.reads(old) for old, new in replacements.items()):
        return
    target = options.target.value
    raise NoKernel(f"{declared.title} reads a constant without elements as a scalar (--target {target})")


def misread(index: OpIndex, options: Options, nodes: Iterable[ir.Node]) -> frozenset[str]:
    """What the runtimes which the result is for read wrongly there, in words: values that bodies read, and attentions.

    Args:
        index: The model's nodes.
        options: Options of the run.
        nodes: What a change is about: attentions are looked at where one is a Transpose, on which it depends.
    """
    ops, found = targets.closed_to_outputs(options.target), set[str]()
    if ops and index.has_any_anywhere(ops):
        names = targets.misread(index.graphs(), ops)
        found.update(f"an output of the model that a branch reads ({name})" for name in names)
    if targets.mistakes_heads(options.target) and any(node.op_type == "Transpose" for node in nodes):
        attentions = (node for graph in index.graphs() for node in index.nodes(graph, "Softmax"))
        found.update(f"an attention with as many heads as positions ({name})" for name in targets.mistaken(attentions))
    return frozenset(found)


def check_misread(before: frozenset[str], index: OpIndex, options: Options, nodes: Iterable[ir.Node]) -> None:
    """Refuse a change after which more is read wrongly there.

    Args:
        before: What `misread` gave before it.
        index: The model's nodes.
        options: Options of the run.
        nodes: The nodes that it replaces, and those that it made.

    Raises:
        Conflict: If it is.
    """
    more = misread(index, options, nodes) - before
    if more:
        raise Conflict(f"{min(more)} is read wrongly by some runtimes (--target {options.target.value})")


def may_round(index: OpIndex, matched: Iterable[ir.Node]) -> bool:
    """Whether ONNX Runtime may round what some nodes multiply when it loads the model, and so may it after a change.

    Args:
        index: The model's nodes.
        matched: The nodes that are changed.
    """
    return index.has_any_anywhere(_DEQUANTIZERS) and weight_rounding.any_is_rounded(matched)


def check_rounding(before: bool, index: OpIndex, new: Iterable[ir.Node]) -> None:
    """Refuse a change after which ONNX Runtime rounds at load what it has not rounded.

    Args:
        before: What `may_round` gave before it.
        index: The model's nodes.
        new: The nodes that it made.

    Raises:
        Conflict: If it does.
    """
    if not before and may_round(index, new):
        raise Conflict("ONNX Runtime would round what is multiplied by the weights to 8 bits, at load")


def check_form(node: ir.Node) -> None:
    """Refuse a new node with inputs or attributes that its op does not have in the opset there.

    Args:
        node: The new node, in its graph.

    Raises:
        Conflict: If it has.
    """
    version = scope.of_node(node).opset_imports.get(node.domain, CONTRIB_VERSION)
    form = kernels.official_form(node.domain, node.op_type, version)
    if form is None:
        return
    if not form.least_inputs <= len(node.inputs) <= form.most_inputs:
        raise Conflict(f"{node.op_type} of opset {version} has another number of inputs than {len(node.inputs)}")
    unknown = next((name for name in node.attributes if name not in form.attributes), None)
    if unknown is not None:
        raise Conflict(f"{node.op_type} of opset {version} has no attribute {unknown}")


def _check_alike(node: ir.Node, version: int, of_model: int) -> None:
    """Refuse a node of a function that is another op in the model's opset: ONNX Runtime reads all nodes by that."""
    alike = version == of_model or kernels.is_defined_alike(node.domain, node.op_type, version, of_model)
    if not alike:
        which = f"opset {version} of the function and opset {of_model} of the model"
        raise Conflict(f"{node.op_type} differs between {which}")


def _since(node: ir.Node, version: int) -> str:
    """Which opset of ai.onnx has an op, where a newer one has it."""
    newer = range(version + 1, NEWEST_OPSET + 1) if not node.domain else ()
    first = next((one for one in newer if kernels.is_official("", node.op_type, one)), None)
    return "" if first is None else f": --opset {first} has it"


def may_be_copied(node: ir.Node) -> bool:
    """Whether a new node may be of an op that nobody declares, in a model that has such a node already.

    What no opset of ONNX defines comes from elsewhere: copies of it, or bodies of functions that are inlined, may hold
    it. What only another opset defines may not.

    Args:
        node: The new node.
    """
    return node.domain not in STANDARD_DOMAINS or not kernels.is_official(node.domain, node.op_type, NEWEST_OPSET)


def is_unknown(node: ir.Node) -> bool:
    """Whether neither ONNX nor ONNX Runtime defines an op: which provider runs it is not known here.

    Args:
        node: A node of a graph.
    """
    version = scope.of_node(node).opset_imports.get(node.domain, CONTRIB_VERSION)
    return kernels.schema(node.domain, node.op_type, version) is None


def check_runnable(
    node: ir.Node,
    matched: Sequence[ir.Node],
    providers: Sequence[str],
    placed: Mapping[ir.Node, str | None] | None = None,
) -> None:
    """Refuse a new node that can run neither where the replaced nodes run, nor on a more preferred provider.

    Args:
        node: The new node, in its graph.
        matched: The nodes of the rewrite; those that have gone already are in `placed`.
        providers: Execution providers, in order of preference.
        placed: Where nodes of the rewrite ran before it began.

    Raises:
        Conflict: If it cannot.
    """
    places = _Places(matched, providers, placed or {})
    if any(value is not None and value.type is None for value in node.inputs):  # the choice of a kernel depends on it
        return
    version = scope.of_node(node).opset_imports.get(node.domain, CONTRIB_VERSION)
    place, how = next(
        (
            (place, answer)
            for place, provider in enumerate(providers)
            if (answer := kernels.support(provider, node, version)) is not None
        ),
        (None, None),
    )
    expanded = how is kernels.Support.EXPANDED and node.domain not in STANDARD_DOMAINS
    if place is not None and not expanded and (not place or place <= places.last(node)):
        return
    if places.any_unsupported():  # checked last: a replaced node may have many inputs
        return
    if expanded:
        raise NoKernel(f"the provider would take {node.op_type} apart again")
    types = ", ".join(
        "unknown" if value.dtype is None else value.dtype.name.lower() for value in node.inputs if value is not None
    )
    if place is None:
        raise NoKernel(f"no provider has a kernel of {node.op_type} for {types}{_elsewhere(node, version, providers)}")
    provider = providers[places.last(node)]
    raise NoKernel(f"{provider}, where it is to run, has no kernel of {node.op_type} for {types}")


def _elsewhere(node: ir.Node, version: int, providers: Sequence[str]) -> str:
    """Which provider that was not chosen has a kernel of a node, with what chooses it."""
    others = [name for name in (kernels.CPU, kernels.CUDA) if name not in providers]
    having = [name for name in others if kernels.support(name, node, version) is kernels.Support.KERNEL]
    names = [name.removesuffix("ExecutionProvider") for name in having]
    return "".join(f" ({name} has one: --provider {name.lower()})" for name in names)


@dataclass(eq=False)
class _Places:
    """Where the nodes of a rewrite run.

    Attributes:
        matched: The nodes.
        providers: Execution providers, in order of preference.
        placed: Where they ran before the rewrite began, of those of which that was asked then.
    """

    matched: Sequence[ir.Node]
    providers: Sequence[str]
    placed: Mapping[ir.Node, str | None]

    def _of(self, node: ir.Node) -> str | None:
        if node in self.placed:
            return self.placed[node]
        return self.providers[0] if node.graph is None else provider_of(node, self.providers)

    def last(self, new: ir.Node) -> int:
        """The last place in the list of providers where a new node may run.

        It is the last place of the matched nodes of the same op, or, if there are none, the first of all.
        """
        peers = [old for old in self.matched if old.op_identifier() == new.op_identifier()]
        names = map(self._of, peers or self.matched)
        places = [self.providers.index(name) for name in names if name is not None]
        if not places:
            return len(self.providers)
        return max(places) if peers else min(places)

    def any_unsupported(self) -> bool:
        """Whether one of them runs nowhere."""
        return any(self._of(old) is None for old in self.matched)
