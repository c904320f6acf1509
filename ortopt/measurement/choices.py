"""What tuning decides, and what it tries: options that choose between equivalent forms, as data that can be replayed.

Tried are single changes of the choices that were made, those that may gain most first. A form may be off for several
reasons: another processor loses with it, it loses at other sizes, nobody has measured it, or several threads lose with
it. And what is on may lose here. All of these are candidates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import onnx_ir as ir
from msgspec import Meta, Struct, json
from msgspec.structs import asdict, replace

from ortopt import documents, registry
from ortopt.framework.fusions import Decision
from ortopt.observers import Observer
from ortopt.optimization.result import Summary
from ortopt.options import Fusions, March, Numerics, Options, Target, TransformerLevel
from ortopt.terminal_text import between
from ortopt.transformer import GraphTransformer

KEY: Final = "choices"
"""Where a report has them."""


class Choices(Struct, frozen=True):
    """Options that choose between equivalent forms of a computation; in a report as they stand here.

    Attributes:
        level: The optimization level.
        fusions: Which fused forms are taken.
        disable: Passes that are left out.
        enable: Passes that run although they are off by default.
        force_forms: Forms of the table of costs that are taken whatever is known of them.
        march: The processors for which forms are chosen.
        for_threads: Threads that the result will run with; None where that is not known.
        target: What runs the result, where that is one of the choices; None leaves what the options say.
    """

    level: Annotated[int, Meta(ge=0, le=4)]
    fusions: Fusions
    disable: tuple[str, ...]
    enable: tuple[str, ...]
    force_forms: tuple[str, ...] = ()
    march: March = March.ANY
    for_threads: Annotated[int, Meta(ge=1)] | None = None
    target: Literal["onnx"] | None = None

    @staticmethod
    def of(options: Options) -> Choices:
        """The choices that some options make."""
        return Choices(
            options.level,
            options.fusions,
            options.disable,
            options.enable,
            options.force_forms,
            options.march,
            options.for_threads,
            "onnx" if options.target is Target.ONNX else None,
        )

    def applied_to(self, options: Options) -> Options:
        """The same options with these choices."""
        target = options.target if self.target is None else Target(self.target)
        return dataclasses.replace(options, **{**asdict(self), "target": target})

    def as_dict(self) -> dict[str, Any]:
        """The choices as data that json can write."""
        data: dict[str, Any] = json.decode(json.encode(self))
        return data


def read_choices(path: str | Path) -> Choices:
    """The choices of a file: a report of a run (``--json``), or the part of one under ``choices``.

    Args:
        path: The file.

    Raises:
        InvalidModelError: If it cannot be read, or is neither.
    """
    content = documents.contents(path)
    try:
        data = documents.parse_json(content)
        return documents.typed(data[KEY] if isinstance(data, dict) and KEY in data else data, Choices)
    except ValueError as error:
        what = "it has no choices, as a report that --json has written"
        raise documents.invalid(path, what, error) from error


class Candidate(NamedTuple):
    """A choice that may make a model faster.

    Attributes:
        name: What is chosen, in words, with why it is not chosen anyway.
        choices: What it adds to others.
        is_pass: Whether it is about one pass: those are tried last.
    """

    name: str
    choices: Choices
    is_pass: bool = False


class Declined(Observer):
    """Writes down the forms that a run has left out because of what is known of them."""

    listens_to_refusals = True

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def weighed(self, transformer: GraphTransformer, node: ir.Node, decision: Decision) -> None:
        """Keep what was decided where the form was fastest, as far as that is known."""
        if not decision.taken:
            form = str(decision.form)
            known = self.decisions.get(form)
            if known is None or _promise(decision) > _promise(known):
                self.decisions[form] = decision


def _promise(decision: Decision) -> float:
    """How fast a form was anywhere, at best; what nobody has measured is as fast as the nodes."""
    cost = decision.cost
    return 1.0 if cost is None or cost.speed is None else cost.speed[1]


def candidates(
    chosen: Choices, summary: Summary, declined: Declined, *, one_thread: bool, target: Target
) -> Iterator[Candidate]:
    """Changes to try.

    Args:
        chosen: What was chosen so far.
        summary: What the run with these choices did.
        declined: What it left out.
        one_thread: Whether the result will run with one thread.
        target: What runs the result.

    Yields:
        Choices that are added to others: their lists have nothing but what is new.
    """
    nothing = replace(chosen, disable=(), enable=(), force_forms=())
    forms = sorted(declined.decisions, key=lambda form: (-_promise(declined.decisions[form]), form))
    if chosen.march is not March.NATIVE:
        choices = replace(nothing, march=March.NATIVE)
        yield Candidate("forms for processors like this one (--march native)", choices)
    if one_thread and chosen.for_threads != 1:
        yield Candidate("forms that lose with several threads (--for-threads 1)", replace(nothing, for_threads=1))
    if chosen.fusions is Fusions.DEFAULT:
        if len(forms) > 1:
            choices = replace(nothing, fusions=Fusions.ALL)
            yield Candidate("every form that is left out (--fusions all)", choices)
        for form in forms:
            yield Candidate(f"{form} ({_known(declined.decisions[form])})", replace(nothing, force_forms=(form,)))
    if target is Target.ORT and chosen.target is None:
        yield Candidate("standard ops only (--target onnx)", replace(nothing, target="onnx"))
    kinds = {kind.name: kind for kind in registry.installed() if kind.name}
    for name, kind in kinds.items():
        off = not kind.enabled and name not in (*chosen.enable, *chosen.disable)
        if off and kind.numerics in (Numerics.EXACT, Numerics.REORDERED) and _is_choice(kind.levels):
            yield Candidate(f"with {name}, which is off by default", replace(nothing, enable=(name,)), is_pass=True)
    for total in summary.passes:
        if total.transformer in kinds and _is_choice(kinds[total.transformer].levels):
            yield Candidate(f"without {total.transformer}", replace(nothing, disable=(total.transformer,)), True)


def _known(decision: Decision) -> str:
    """Why a form is left out, in short."""
    cost = decision.cost
    if cost is None or cost.speed is None:
        return "nobody has measured it"
    return f"elsewhere {between(*cost.speed)}"


def _is_choice(levels: Sequence[TransformerLevel]) -> bool:
    """Whether a pass chooses between forms for the sake of a provider's kernels."""
    return min(levels) in (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)


def merged(best: Choices, other: Choices) -> Choices:
    """Another choice on top of the best ones."""
    return replace(
        best,
        fusions=best.fusions if other.fusions is Fusions.DEFAULT else other.fusions,
        disable=(*best.disable, *other.disable),
        enable=(*best.enable, *other.enable),
        force_forms=(*best.force_forms, *other.force_forms),
        march=best.march if other.march is March.ANY else other.march,
        for_threads=other.for_threads or best.for_threads,
        target=other.target or best.target,
    )
