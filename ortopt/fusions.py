"""Whether a run takes a fused form: one op for several nodes, where that is faster on the provider that runs it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import placement
from ortopt.analysis import costs
from ortopt.analysis.costs import Cost, Form, Sizes, Verdict
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope
from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal
from ortopt.options import Fusions

INSISTING = "--fusions all takes it anyway"


def check_wanted(node: ir.Node, fusions: Fusions, providers: Sequence[str], *, smaller: bool) -> None:
    """Refuse a new node of a fused form that the run does not want.

    Args:
        node: The new node, in its graph.
        fusions: Which fused forms the run takes.
        providers: Execution providers, in order of preference.
        smaller: Whether the graph has fewer nodes with it.

    Raises:
        Conflict: If it is not wanted, with a reason that says what to do about it.
    """
    provider = placement.provider_of(node, providers) if fusions is Fusions.DEFAULT else None
    reason = _objection(costs.form_of(node), fusions, provider, costs.sizes_of(node), smaller=smaller)
    if reason:
        raise Conflict(reason)


def preferred(root: ir.Node, forms: Sequence[Form], sizes: Sizes | None = None) -> Form:
    """The one of several forms of a computation that the run takes: a question for rules that have a choice.

    Args:
        root: The root of the pattern; its graph says what the run wants, and the root's provider is the form's.
        forms: The forms that are possible here, the simplest first, which is taken where nobody knows better.
        sizes: The sizes that are known.

    Returns:
        The fastest, as far as that is known, of those that are wanted.

    Raises:
        Refusal: If none is wanted, with the reason for the first.
    """
    options = scope.of(scope.graph_of(root)).options
    provider = placement.provider_of(root, options.providers)
    objections = [_objection(form, options.fusions, provider, sizes or {}, smaller=True) for form in forms]
    wanted = [form for form, objection in zip(forms, objections, strict=True) if not objection]
    if not wanted:
        raise Refusal(objections[0], root)
    fastest = None if provider is None else costs.shipped().fastest(wanted, provider, sizes)
    return fastest or wanted[0]


def _objection(form: Form, fusions: Fusions, provider: str | None, sizes: Sizes, *, smaller: bool) -> str:
    """Why a form is not wanted; empty if it is."""
    if fusions is Fusions.NONE:
        return f"{form.op_type} stands for several nodes, and --fusions none takes no such op"
    if fusions is Fusions.ALL or provider is None:
        return ""
    cost = costs.shipped().find(form, provider, sizes)
    if cost is None or cost.verdict is Verdict.PAYS or (smaller and cost.verdict is not Verdict.LOSES):
        return ""
    return _against(cost)


def _against(cost: Cost) -> str:
    """Why a form is not worth it, in words."""
    op = f"{cost.form.op_type} {cost.form.variant}".strip()
    where = "the CPU" if cost.provider == CPU else cost.provider.removesuffix("ExecutionProvider")
    if cost.speed is None:
        known = f"nobody has measured whether {op} is faster than {cost.instead_of} on {where}"
    else:
        low, high = (f"{speed:.2g}" for speed in cost.speed)
        speed = low if low == high else f"{low} to {high}"
        known = f"{op} runs at {speed} of the speed of {cost.instead_of} on {where}"
    return f"{known} ({INSISTING})"


__all__ = ["check_wanted", "preferred"]
