"""What tuning measured, as data and in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortopt.measurement.choices import Choices
from ortopt.measurement.words import OTHER_SIZES, place_in_words
from ortopt.options import Options
from ortopt.reporting.report import plain
from ortopt.terminal_text import faster

if TYPE_CHECKING:
    from ortopt.measurement.recipe import Recipe
    from ortopt.measurement.tune import Tuning


def tuning_fields(options: Options, tuning: Tuning | None) -> dict[str, Any]:
    """The fields of a report that say what was chosen between equivalent forms, and what was measured for it.

    Args:
        options: The options of the run, with the choices.
        tuning: What was measured, or None.
    """
    return {"choices": Choices.of(options).as_dict(), "tuning": None if tuning is None else _measured(tuning)}


def _measured(tuning: Tuning) -> dict[str, Any]:
    return {
        "sizes": [dict(sizes) for sizes in tuning.sizes],
        "measured_with": [stored.as_dict() for stored in tuning.inputs],
        "steps": [{"choice": step.choice, "kept": step.kept, "speeds": plain(step.speeds)} for step in tuning.steps],
        "against_original": plain(tuning.against_original),
        "unmeasured": list(tuning.unmeasured),
        "reason": tuning.reason,
        "seconds": tuning.seconds,
        "recipe": None if tuning.recipe is None else _recipe(tuning.recipe),
    }


def _recipe(recipe: Recipe) -> dict[str, Any]:
    return {
        "threads": recipe.threads,
        "levers": [
            {"lever": step.lever.name, "kept": step.kept, "why_not": step.reason, "speeds": plain(step.speeds)}
            for step in recipe.steps
        ],
        "kept": [lever.name for lever in recipe.kept],
        "together": plain(recipe.together),
        "environment": {name: value for lever in recipe.kept for name, value in lever.environment},
        "python": recipe.python("model.onnx"),
        "not_tried": list(recipe.not_tried),
        "reason": recipe.reason,
    }


def tuning_lines(data: Mapping[str, Any] | None) -> Iterator[str]:
    """What tuning found, in sentences.

    Args:
        data: The field ``tuning`` of a report.
    """
    if data is None:
        return
    if data["reason"]:
        yield f"not tuned: {data['reason']}"
        return
    kept = [step for step in data["steps"] if step["kept"]]
    for step in kept:
        yield f"tuned: {step['choice']} ({_said(step['speeds'], data['measured_with'])})"
    if not kept:
        yield f"tuned: none of {len(data['steps'])} other choices was faster"
    if data["against_original"] is not None:
        yield f"measured against the original: {_said(data['against_original'], data['measured_with'])}"
    for fallback in dict.fromkeys(one["fallback"] for one in data["measured_with"] if one["fallback"]):
        yield f"measured, {OTHER_SIZES}: {fallback}"
    yield from _said_of_settings(data)
    if data["unmeasured"]:
        yield f"not measured, for lack of time (--tune-seconds): {', '.join(data['unmeasured'])}"


def _said_of_settings(data: Mapping[str, Any]) -> Iterator[str]:
    """What settings of a session give, beside the file."""
    recipe = data["recipe"]
    if recipe is None or recipe["reason"]:
        return
    if recipe["together"] is None:
        yield f"settings of the session: none of {len(recipe['levers'])} that were measured is clearly faster"
        return
    places = zip(recipe["together"], data["measured_with"], strict=True)
    ratios = "; ".join(
        f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f}) at {place_in_words(where)}"
        for one, where in places
    )
    yield f"settings of the session: {', '.join(recipe['kept'])}: {ratios} times as fast"


def recipe_lines(data: Mapping[str, Any] | None) -> Sequence[str]:
    """The lines of Python that set what tuning has found for sessions; none where it has found nothing.

    Args:
        data: The field ``tuning`` of a report.
    """
    recipe = None if data is None else data["recipe"]
    return [] if recipe is None else recipe["python"]


def _said(speeds: Sequence[Mapping[str, float]], inputs: Sequence[Mapping[str, Any]]) -> str:
    pairs = zip(speeds, inputs, strict=True)
    return "; ".join(f"{faster(speed['median'])} at {place_in_words(one)}" for speed, one in pairs)
