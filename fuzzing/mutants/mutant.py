"""A mutant of a seed: an example of a pass, changed a few times, with inputs that it runs on."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx.inliner
from onnx import ModelProto, numpy_helper

from fuzzing.generator import Case
from fuzzing.mutants import contents, interface, nesting, spelling, wiring
from fuzzing.mutants.draft import Draft
from fuzzing.mutants.examples import Example, examples, names
from fuzzing.mutations import Mutator
from fuzzing.oracle import Way, run, session
from fuzzing.protos import watched
from fuzzing.writer import Array, Unsuitable
from ortopt import registry
from ortopt.options import Numerics
from ortopt.serialization.load import load
from ortopt.verification.draws import Draw, initial_draws
from ortopt.verification.inputs import Interface

AT_ONCE: Final = 8
"""So many mutants in a row come of one pass: its tests are read once for them."""

_ATTEMPTS: Final = 12
_MAX_ELEMENTS: Final = 1 << 20

_CHANGES: Final[tuple[tuple[Callable[[Draft], None], int], ...]] = (
    (contents.numbers, 4),
    (contents.integers, 2),
    (contents.order, 1),
    (contents.shape, 4),
    (contents.turned, 1),
    (contents.widened, 1),
    (contents.shared, 1),
    (contents.spelled, 1),
    (contents.overridable, 3),
    (interface.element_type, 4),
    (interface.one_type, 1),
    (interface.size, 4),
    (interface.symbol, 4),
    (interface.all_open, 3),
    (interface.rank, 4),
    (interface.opset, 4),
    (wiring.operand, 3),
    (wiring.twice, 2),
    (wiring.swapped, 2),
    (wiring.omitted, 2),
    (wiring.added, 1),
    (wiring.output, 4),
    (wiring.consumer, 3),
    (wiring.between, 2),
    (wiring.bypassed, 2),
    (wiring.op, 3),
    (wiring.attribute, 5),
    (wiring.further_attribute, 3),
    (wiring.branch, 1),
    (nesting.captured, 3),
    (nesting.moved, 3),
    (nesting.looped, 1),
    (nesting.doubled, 2),
    (spelling.from_the_end, 3),
    (spelling.defaults, 1),
    (spelling.left_to_the_op, 2),
    (spelling.told, 1),
)
"""What changes a model, and how often beside the others."""


@dataclass(frozen=True)
class Mutant:
    """A changed example.

    Attributes:
        example: What it comes of.
        case: The model and its inputs.
        ways: How it is optimized.
    """

    example: Example
    case: Case
    ways: tuple[Way, ...]


def mutant(seed: int, passes: Sequence[str] = ()) -> Mutant:
    """The mutant of a seed, the same on any machine as long as the passes and their tests are.

    Args:
        seed: What to draw from.
        passes: Passes whose examples are changed; all if empty.

    Raises:
        Unsuitable: None was found that ONNX Runtime runs.
    """
    chosen = tuple(passes) or names()
    name = chosen[(seed // AT_ONCE) % len(chosen)]
    for attempt in range(_ATTEMPTS):
        draw = random.Random(f"{seed}/{attempt}/{name}")
        try:
            example = draw.choice(examples(name) or _none())
            case = _case(draw, example, seed)
        except Unsuitable:
            continue
        return Mutant(example, case, _ways(draw, example))
    raise Unsuitable(f"no mutant comes of seed {seed}")


def _none() -> tuple[Example, ...]:
    raise Unsuitable


def _ways(draw: random.Random, example: Example) -> tuple[Way, ...]:
    """How a mutant is optimized: the pass alone first, which is then to blame, unless it may change numbers."""
    kind = registry.installed().find(example.transformer)
    options = dict(example.options)
    target = options.pop("target", "ort")
    only = Way(max(one.value for one in kind.levels), target, {**options, "only": (example.transformer,)})
    alone = () if kind.numerics in (Numerics.APPROXIMATE, Numerics.BOUNDED) else (only,)
    rare = draw.choice(
        (Way(3, "onnx"), Way(3, "ort", {"march": "native"}), Way(4), Way(3, "ort", {"max_growth": 0}))
    )
    return *alone, Way(1, "onnx"), Way(3), Way(3, "ort", {"fusions": "all", **options}), rare


def _case(draw: random.Random, example: Example, seed: int) -> Case:
    draft = Draft(draw, copy.deepcopy(example.model))
    draft.forget_computed()
    kinds, weights = zip(*_CHANGES, strict=True)
    made: list[str] = []
    for _ in range(draw.choice((1, 1, 2, 2, 3, 4))):
        change = draw.choices(kinds, weights)[0]
        try:
            change(draft)
        except (Unsuitable, ValueError, OverflowError, TypeError):  # it does not fit; what it did until then stays
            continue
        made.append(f"{change.__module__.rpartition('.')[2]}.{change.__name__}")
    model = draft.model
    feeds, special = _feeds(draw, model, example, seed)
    if draw.random() < 0.35:
        made.append("inserted nodes")
        model = _with_nodes_that_change_nothing(draw, model, feeds[0], draft.opset)
    label = f"seed {seed}: an example of {example.transformer}, changed by {', '.join(made) or 'nothing'}"
    return Case(model, feeds, special, label)


def _feeds(draw: random.Random, model: ModelProto, example: Example, seed: int) -> tuple[list[dict[str, Array]], int]:
    """Input sets, and how many of the last have NaN, infinities and the like.

    Raises:
        Unsuitable: ONNX Runtime does not load the model, or runs it on none of what was drawn first.
    """
    content = model.SerializeToString()
    try:
        onnx.inliner.inline_local_functions(model)  # the comparison does so, too; onnx has a limit
        runs = session(content)
        with warnings.catch_warnings(action="ignore"):
            drawn = Interface(load(content))
            first = next(one for one in _first(drawn, example, seed) if _runs(runs, one))
    except (StopIteration, Exception) as error:  # what neither takes is many things
        raise Unsuitable from error
    feeds = [first]
    others = [Draw(odd=1), Draw(size=1), Draw(floats="coarse", odd=0), Draw(integers="signed")]
    others += [Draw(sizes=((name, draw.choice((0, 1, 4))),)) for name in drawn.symbols]
    special = [Draw(floats="nan"), Draw(floats="inf"), Draw(integers="extreme", floats="wide", octaves=60)]
    for number, how in enumerate((*others, *special)):
        try:
            given = dict(drawn.draw(seed=seed + number, how=how))
        except Exception:  # sizes that contradict each other
            continue
        if drawn.takes_empty or all(np.size(array) for array in given.values()):
            feeds.append({**given, **_replaced(model, draw)})
    return feeds, len(special)


def _first(drawn: Interface, example: Example, seed: int) -> Iterator[dict[str, Array]]:
    """What may be the first input set: natural numbers, those of the test where they fit, then others."""
    for number, how in enumerate(initial_draws()):
        given: dict[str, Any] = dict(drawn.draw(seed=seed, how=how))
        if sum(np.size(array) for array in given.values()) > _MAX_ELEMENTS:
            raise Unsuitable
        if number == 0 and example.inputs:
            yield {name: np.asarray(example.inputs.get(name, array)) for name, array in given.items()}
        yield given
        if number > 5:
            return


def _runs(runs: Any, feeds: dict[str, Array]) -> bool:
    try:
        run(runs, feeds)
    except Exception:
        return False
    return True


def _replaced(model: ModelProto, draw: random.Random) -> dict[str, Array]:
    """Other numbers for initializers that a caller may replace."""
    told = {one.name for one in model.graph.input}
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.name in told and draw.random() < 0.7:
            array = numpy_helper.to_array(tensor)
            found[tensor.name] = np.asarray(array + array.dtype.type(1)) if array.dtype.kind in "fi" else array
    return found


def _with_nodes_that_change_nothing(
    draw: random.Random, model: ModelProto, feeds: dict[str, Array], opset: int
) -> ModelProto:
    """The model with nodes inserted, doubled and taken apart; itself where that does not fit."""
    try:
        runs = session(watched(model).SerializeToString())
        got = zip((one.name for one in runs.get_outputs()), run(runs, feeds), strict=True)
        values = {name: np.asarray(value) for name, value in (*feeds.items(), *got) if not isinstance(value, list)}
    except Exception:  # a value that no output can be
        return model
    twin = copy.deepcopy(model)
    mutator = Mutator(draw, twin, values, opset)
    for _ in range(draw.choice((1, 1, 2, 3))):
        try:
            draw.choice(mutator.ways)()
        except (Unsuitable, ValueError, TypeError, KeyError):
            continue
    return twin if _loads(twin, feeds) else model


def _loads(model: ModelProto, feeds: dict[str, Array]) -> bool:
    try:
        return _runs(session(model.SerializeToString()), feeds)
    except Exception:
        return False
