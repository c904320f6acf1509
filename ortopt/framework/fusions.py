"""Whether a run takes a fused form: one op for several nodes, where that is faster on the provider that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import costs, kernels, node_sizes
from ortopt.analysis.cost_tables import table_for, table_of
from ortopt.analysis.costs import Cost, Form, Places, Verdict
from ortopt.analysis.kernels import CPU, CUDA
from ortopt.analysis.node_sizes import Place, representative_places
from ortopt.errors import UsageError
from ortopt.framework import placement
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal, need
from ortopt.graph.refusal import Code
from ortopt.graph.symbolic import Dim
from ortopt.options import Fusions, Options
from ortopt.terminal_text import between

INSISTING = "--fusions all takes it anyway"

_PLACES: Final = "ortopt.framework.fusions.places"


class Decision(Struct, frozen=True):
    """What was decided about a fused form, and by what.

    Attributes:
        form: The form.
        taken: Whether it is taken.
        cost: The row of the table that decided; None where the table has none.
        places: The sizes at which it was asked for.
        smaller: Whether the graph has fewer nodes with it.
    """

    form: Form
    taken: bool
    cost: Cost | None
    places: Places
    smaller: bool


class NotWanted(Conflict):
    """A fused form, where ``--fusions none`` takes none."""

    code = Code.COST


class Unwanted(Conflict):
    """A fused form that is not worth it.

    Args:
        reason: Why, for the user.
        cost: What is known of it.
        decision: What was decided, and by what; None where no single form was asked for.
    """

    code = Code.COST

    def __init__(self, reason: str, cost: Cost, decision: Decision | None = None) -> None:
        super().__init__(reason)
        self.cost = cost
        self.decision = decision


class Slower(Refusal):
    """A match that does not hold because another form is not known to be slower, whatever ``--fusions`` says.

    Args:
        decision: What was decided, and by what.
        root: The root of the pattern.
    """

    code = Code.COST
    hint = ""
    """What is said of it beside the reason."""

    def __init__(self, decision: Decision, root: ir.Node) -> None:
        assert decision.cost is not None
        super().__init__(explained(decision.cost) + self.hint, root)
        self.decision = decision


class Declined(Slower):
    """A match that does not hold because the fused form is not worth it."""

    hint = f"; {INSISTING}"


def check_wanted(node: ir.Node, options: Options, *, smaller: bool) -> Decision | None:
    """Refuse a new node of a fused form that the run does not want.

    Args:
        node: The new node, in its graph.
        options: Options of the run.
        smaller: Whether the graph has fewer nodes with it.

    Returns:
        What decided; None where nothing was asked for.

    Raises:
        Unwanted: If it is not worth it, with a reason that says what to do about it.
        NotWanted: If no fused form is wanted.
    """
    form = costs.form_of(node)
    if options.fusions is Fusions.NONE:
        raise NotWanted(_not_any(form))
    if options.fusions is Fusions.ALL:
        return None
    asked = [node_sizes.sizes_of(node, place) for place in places_of(node, options)]
    decision = _decided(form, placement.provider_of(node, options.providers), asked, options, smaller=smaller)
    if not decision.taken:
        assert decision.cost is not None
        raise Unwanted(_not_worthwhile(decision.cost), decision.cost, decision)
    return decision


def places_of(node: ir.Node, options: Options) -> Sequence[Place]:
    """The sizes of symbolic dimensions at which the costs of a node's forms are asked for.

    Args:
        node: The node, in its graph.
        options: Options of the run.

    Returns:
        Those that the caller expects, else representative ones; one mapping for each way to call the model.
    """
    model = scope.of_node(node).model
    known: tuple[object, Sequence[Place]] | None = model.meta.get(_PLACES)
    if known is None or known[0] != options.dim_hints:
        known = options.dim_hints, representative_places(model, options.dim_hints)
        model.meta[_PLACES] = known
    return known[1]


def as_tokens(root: ir.Node, dims: Sequence[Dim]) -> Sequence[Dim]:
    """Dimensions of rows that are tokens, whatever they are called: a batch that alone is open counts a short text.

    Args:
        root: A node of the graph.
        dims: The dimensions; they stay where the caller says what sizes to expect, or where other sizes are open.
    """
    options = scope.of_node(root).options
    places = places_of(root, options)
    is_batch = all(extent == (1, 1) for place in places for extent in place.values())
    if options.dim_hints or not is_batch:
        return dims
    sizes = {name: node_sizes.TEXTS[0] for place in places for name in place}
    return [dim if isinstance(dim, int) else symbolic.substitute(dim, sizes) for dim in dims]


def check_convertible(node: ir.Node, options: Options) -> None:
    """Refuse a new node of a fused form that keeps a run from what it was asked for: 16 bits.

    A conversion makes models for a GPU, whichever provider verifies them here: CUDA's kernels count.

    Args:
        node: The new node, in its graph.
        options: Options of the run.

    Raises:
        Conflict: If the op has no kernel of 16 bits.
    """
    if not (options.float16 or options.bfloat16):
        return
    half = "tensor(float16)" if options.float16 else "tensor(bfloat16)"
    opset = scope.of_node(node).opset_imports.get(node.domain, placement.CONTRIB_VERSION)
    schema = kernels.schema(node.domain, node.op_type, opset)
    if schema is None:
        return
    constraint = next(
        (name for _, name in (*schema.outputs, *schema.inputs) if half in schema.constraints.get(name, ())), ""
    )
    if not constraint or not kernels.has_kernel(CUDA, node.domain, node.op_type, opset, {constraint: half}):
        raise Conflict(f"{node.op_type} has no kernel of 16 bits, to which the model is converted afterwards")


def check_worthwhile(ops: Sequence[tuple[str, str]], node: ir.Node, options: Options) -> None:
    """Refuse a candidate before anything is built for it, where all that could come of it is known to lose.

    Args:
        ops: The fused ops that its transformer makes, as (domain, op type).
        node: A node of the candidate.
        options: Options of the run.

    Raises:
        Unwanted: If they all lose on the node's provider, at any size.
    """
    if not ops or options.fusions is not Fusions.DEFAULT or any(_is_of(form, ops) for form in options.force_forms):
        return
    provider = placement.provider_of(node, options.providers)
    cost = None if provider is None else table_for(options).loser(ops, provider)
    if cost is not None:
        raise Unwanted(_not_worthwhile(cost), cost, Decision(cost.form, False, cost, (), False))


def check_taken(options: Options, produced: Iterable[tuple[str, str]]) -> None:
    """Refuse names of forms to take that are none.

    Args:
        options: Options of the run.
        produced: The ops that passes write: of some of them the table has no row.

    Raises:
        UsageError: If a form has no such name.
    """
    if not options.force_forms:
        return
    names = sorted({str(cost.form) for cost in table_for(options).costs})
    ops = tuple(produced)
    for form in options.force_forms:
        if form not in names and not _is_of(form, ops):
            near = get_close_matches(form, names, 3)
            hint = f"; did you mean {', '.join(near)}?" if near else " (`ortopt costs show` lists them)"
            raise UsageError(f"--force-forms: there is no form named {form!r}{hint}")


def _is_of(form: str, ops: Sequence[tuple[str, str]]) -> bool:
    """Whether a form, by its name, is of one of some ops."""
    names = [str(Form(domain, op_type)) for domain, op_type in ops]
    return any(form == name or form.startswith(f"{name} ") for name in names)


def placed_on_other_provider(
    node: ir.Node, wanted: Sequence[str], ops: Sequence[tuple[str, str]], options: Options
) -> str:
    """Why a node that does not run on a transformer's providers is left alone, in words.

    Args:
        node: The node.
        wanted: The transformer's providers.
        ops: The fused ops that it makes, as (domain, op type).
        options: Options of the run.
    """
    provider = placement.provider_of(node, options.providers)
    names = " or ".join(map(_named, wanted))
    if provider is None:
        return f"it serves {names}, and no chosen provider has a kernel of {node.op_type}"
    cost = table_for(options).loser(ops, provider)
    if cost is not None and cost.speed is not None:
        return f"it serves {names}: {explained(cost)}, where this node runs"
    flags = " or ".join(f"--provider {_short(name).lower()}" for name in wanted)
    return f"it serves {names}, and this node runs on {_named(provider)} ({flags} makes a result for {names})"


def _named(provider: str) -> str:
    """A provider as it stands in a sentence."""
    return "the CPU" if provider == CPU else _short(provider)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def preferred(root: ir.Node, forms: Sequence[Form], sizes: Mapping[str, Dim] | None = None) -> Form:
    """The one of several forms of a computation that the run takes: a question for rules that have a choice.

    Args:
        root: The root of the pattern; its graph says what the run wants, and the root's provider is the form's.
        forms: The forms that are possible here, the simplest first, which is taken where nobody knows better.
        sizes: The sizes that are known, by the names of the table.

    Returns:
        The fastest, as far as that is known, of those that are wanted.

    Raises:
        Refusal: If none is wanted, with the reason for the first.
    """
    options = scope.of_node(root).options
    provider = placement.provider_of(root, options.providers)
    if options.fusions is Fusions.NONE:
        raise Refusal(_not_any(forms[0]), root, code=Code.COST)
    factors = {name: (dim,) for name, dim in (sizes or {}).items()}
    asked = [node_sizes.evaluated(factors, place) for place in places_of(root, options)]
    wanted = list(forms)
    if options.fusions is not Fusions.ALL:
        decisions = [_decided(form, provider, asked, options, smaller=True) for form in forms]
        wanted = [decision.form for decision in decisions if decision.taken]
        if not wanted:
            raise Declined(decisions[0], root)
    asked_for = [form for form in wanted if str(form) in options.force_forms]
    if asked_for:
        return asked_for[0]
    fastest = None if provider is None else table_for(options).fastest(wanted, provider, asked)
    return fastest or wanted[0]


def check_faster(root: ir.Node, form: Form, **sizes: Dim | Sequence[Dim] | None) -> None:
    """Refuse a form that is to stand for others, unless it is faster, whatever ``--fusions`` says.

    Args:
        root: The node that it is to stand for.
        form: The form, which the pass declares (`GraphTransformer.weighs`).
        sizes: By the names of the table, each a size or the dimensions of which it is the product. What is None or left
            out is not known, and may be anything: the form is refused if a row says that it loses somewhere.

    Raises:
        Refusal: If it is not known to be faster.
    """
    decision = _weighed(root, form, sizes)
    if not decision.taken:
        raise Slower(decision, root)


def is_faster(root: ir.Node, form: Form, **sizes: Dim | Sequence[Dim] | None) -> bool:
    """Whether `check_faster` takes a form: for a match that has something else to build where it does not.

    Args:
        root: The node that it is to stand for.
        form: The form, which the pass declares (`GraphTransformer.weighs`).
        sizes: By the names of the table.
    """
    return _weighed(root, form, sizes).taken


def speed_of(root: ir.Node, form: Form, **sizes: Dim | Sequence[Dim] | None) -> float:
    """How many times as fast as what it stands for a form is at least; 1 where that is not known.

    Args:
        root: The node that it is to stand for.
        form: The form, which the pass declares (`GraphTransformer.weighs`).
        sizes: By the names of the table.
    """
    cost = _weighed(root, form, sizes).cost
    return 1.0 if cost is None or cost.speed is None else cost.speed[0]


def pays_from(root: ir.Node, form: Form, size: str) -> int:
    """The least value of a size from which on a form pays on a CPU: a weight in what a pass estimates.

    Args:
        root: A node of the graph, whose options name the table.
        form: The form, which the pass declares (`GraphTransformer.weighs`).
        size: The size, by its name in the table.
    """
    least = table_of(scope.of_node(root).options.costs).pays_from(form, CPU, size)
    assert least is not None, "the table that ships has a row for each form that passes weigh"
    return least


def _weighed(root: ir.Node, form: Form, sizes: Mapping[str, Dim | Sequence[Dim] | None]) -> Decision:
    options = scope.of_node(root).options
    provider = placement.provider_of(root, options.providers)
    factors = {name: _factors(size) for name, size in sizes.items() if size is not None}
    asked = [node_sizes.evaluated(factors, place) for place in places_of(root, options)]
    return _decided(form, provider, asked, options, smaller=False)


def _factors(size: Dim | Sequence[Dim]) -> Sequence[Dim]:
    """The dimensions of which a size is the product."""
    return size if isinstance(size, Sequence) else (size,)


def check_apart(root: ir.Node) -> None:
    """Refuse to take one op apart where ``--fusions all`` wants every such op."""
    need(
        scope.of_node(root).options.fusions is not Fusions.ALL,
        "--fusions all keeps what is one op",
        root,
        code=Code.COST,
    )


def is_asked_for(root: ir.Node, form: Form) -> bool:
    """Whether the caller takes a form by its name.

    Args:
        root: A node of the graph.
        form: The form.
    """
    return str(form) in scope.of_node(root).options.force_forms


def _decided(form: Form, provider: str | None, asked: Places, options: Options, *, smaller: bool) -> Decision:
    """Whether a form is taken: not where it loses, or is not known to be faster and does not make the graph smaller.

    Where it is the releases that the run allows of which it is not known, the simpler form is taken.
    """
    cost = None if provider is None else table_for(options).find(form, provider, asked)
    is_open = cost is not None and (cost.verdict is Verdict.LOSES or bool(cost.releases))
    taken = cost is None or cost.verdict is Verdict.PAYS or (smaller and not is_open)
    taken = taken or str(form) in options.force_forms
    return Decision(form, taken, cost, asked, smaller)


def _not_any(form: Form) -> str:
    return f"{form.op_type} stands for several nodes, and --fusions none takes no such op"


def explained(cost: Cost) -> str:
    """What is known against a form, in words.

    Args:
        cost: What it costs.
    """
    op = f"{cost.form.op_type} {cost.form.variant}".strip()
    where = _named(cost.provider) + (f" with ONNX Runtime {cost.releases}" if cost.releases else "")
    if cost.speed is None or (cost.releases and cost.verdict is not Verdict.LOSES):
        known = f"nobody has measured whether {op} is faster than {cost.instead_of} on {where}"
        if cost.elsewhere and cost.verdict is Verdict.LOSES:
            known += f" at these sizes; it loses at some of those that were measured ({cost.elsewhere})"
        elif cost.elsewhere:
            known += f" at these sizes, but with {cost.elsewhere}"
    else:
        speed = between(*cost.speed)
        known = f"on {where}, {op} is {speed} {'as' if speed.endswith('fast') else 'than'} {cost.instead_of}"
    if cost.verdict is not Verdict.LOSES and not cost.elsewhere and not cost.releases:
        known += ", and the graph would not get smaller"
    return known


def _not_worthwhile(cost: Cost) -> str:
    """Why a form is left out, and what takes it anyway."""
    return f"{explained(cost)}; {INSISTING}"
