"""What a run executes once, and a search replays: the original, the transformers, and the order of levels.

What is left of the allowed growth, as a result tells it: a run on a result goes on where the one before stopped.

Else a run would have a new allowance each time, and a second run would fold what was too large for the first. A result
declares the shapes of its outputs where sizes were chosen, and of all values on request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import onnx_ir as ir
from msgspec import structs

from ortopt import semantics
from ortopt.analysis import dimensions, releases
from ortopt.analysis.blocked_layout import blocked_layout
from ortopt.analysis.kernels import CPU
from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.framework.workspace import RunState, Workspace
from ortopt.graph.facts import DECLARED, SHAPE, Dims, dims_of, shape_of
from ortopt.graph.symbolic import UNKNOWN, Dim, equal, is_invented, is_known, provably_different
from ortopt.interface import changes
from ortopt.interface.change import InterfaceChange
from ortopt.interface.ports import Port, ports_of
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer
from ortopt.onnx_ir_internals import get_meta
from ortopt.optimization.result import ModelFigures, figures
from ortopt.options import Options, Target, TransformerLevel
from ortopt.registry import Selected
from ortopt.serialization import shadowed_names, sparse_tensors
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import SOURCE_KEY, Kept, load

if TYPE_CHECKING:
    from ortopt.serialization.load import Source


LAYOUTS = 3
"""The level that arranges a graph for ONNX Runtime's layouts."""


def declare(model: ir.Model, options: Options, token: CancellationToken) -> None:
    """Let a model declare the shapes of its outputs that follow from the sizes of its inputs, and what is asked for.

    Args:
        model: The result; its values have been inferred, but for those of level 0.
        options: Options of the run.
        token: Cancellation token.
    """
    if options.level >= LAYOUTS and options.target is Target.ORT and CPU in options.providers:
        _mark_sums(model, token)
    _declare_what_passes_ask_for(model, token)
    resized = bool(options.dims or options.input_shapes)
    if options.level == 0 and (resized or options.value_info):
        infer_model(model, token)
    for value in model.graph.outputs:
        if resized or (options.target is Target.WEB and _is_proven_wrong(value)):
            _declare_output(value)
    if not (resized or options.value_info):
        return
    origin = model.meta.get(SOURCE_KEY)
    if options.value_info and origin is not None:
        model.meta[SOURCE_KEY] = structs.replace(origin, typed=True)


def _mark_sums(model: ir.Model, token: CancellationToken) -> None:
    """Mark the operands of sums of images that are equally large, where ONNX Runtime infers too little to see it.

    It adds them in five dimensions otherwise, with a Reshape of each, and not in the convolution before them.
    """
    for node in blocked_layout(model.graph, token=token).unequal:
        operands = [value for value in node.inputs if value is not None]
        shapes = [dims_of(value) for value in operands]
        first = shapes[0]
        if first is None or any(is_invented(dim) or not is_known(dim) for dim in first):
            continue
        if all(other is not None and all(map(equal, first, other)) for other in shapes[1:]):
            for value in operands:
                value.meta[DECLARED] = True


def _declare_what_passes_ask_for(model: ir.Model, token: CancellationToken) -> None:
    """Let a file declare the values of the main graph that a pass has marked."""
    origin = model.meta.get(SOURCE_KEY)
    if origin is None or origin.typed is True:
        return
    marked = {
        value.name
        for node in token.checked(model.graph)
        for value in node.outputs
        if get_meta(value, DECLARED) and value.name and value.shape is not None
    }
    if marked:
        typed = origin.typed or frozenset()
        model.meta[SOURCE_KEY] = structs.replace(origin, typed=frozenset(marked) | typed)


def _is_proven_wrong(value: ir.Value) -> bool:
    """Whether an output has another shape than it declares.

    ONNX Runtime warns of that where it infers the shape, too, as it does of results more often than of originals; ONNX
    Runtime Web, which is built without exceptions, refuses to load such a file.
    """
    proven, declared = shape_of(value), value.shape
    if proven is None or declared is None:
        return False
    return len(proven) != len(declared) or any(map(provably_different, proven.dims, declared.dims))


def _declare_output(value: ir.Value) -> None:
    """Correct what an output declares by what is proven of it."""
    better, declared = get_meta(value, SHAPE), value.shape
    proven = shape_of(value)
    if better is None or better[0] is not declared or proven is None:
        return
    claimed = tuple(declared.dims) if declared is not None and len(declared) == len(proven) else None
    dims: Dims = tuple(map(_better, proven.dims, claimed or (UNKNOWN,) * len(proven)))
    denotations = [
        None if claimed is None or declared is None else declared.get_denotation(i) for i in range(len(dims))
    ]
    value.shape = ir.Shape(dims, denotations=denotations)
    value.meta[SHAPE] = (value.shape, proven)


def _better(proven: Dim, claimed: Dim) -> Dim:
    """A number that is proven, else what is declared, else an expression that is proven."""
    if isinstance(proven, int) or not is_known(claimed):
        return UNKNOWN if is_invented(proven) else proven
    return claimed


GROWTH_KEY: Final = "ortopt.growth_left"
"""The model's metadata that says for which `Options.max_growth` how many bytes are left."""

_DEFAULT: Final = "default"
_NUMBER: Final = re.compile("[0-9]{1,18}")


def allowed_growth(model: ir.Model, original_bytes: int, options: Options) -> int:
    """The bytes by which a run's result may exceed its original; what the original says allows no more than there is.

    Args:
        model: The original.
        original_bytes: Bytes of its constants.
        options: Options of the run.
    """
    allowance = semantics.growth_allowance(original_bytes, options)
    left = _left(model, options)
    return allowance if left is None else min(allowance, left)


def record_growth(workspace: Workspace) -> None:
    """Let a result say how many bytes are left, where anything was too large, in this run or in one before.

    That is less than the smallest constant that was refused: what has been freed since does not make room for it.

    Args:
        workspace: Of a run that has ended.
    """
    model, refused = workspace.model, workspace.state.too_large
    if not refused and _left(model, workspace.options) is None:
        model.metadata_props.pop(GROWTH_KEY, None)  # of another allowance
        return
    below = (nbytes - 1 for nbytes in refused.values())
    left = max(0, min(workspace.allowance, workspace.allowance - workspace.edit.added_bytes, *below))
    model.metadata_props[GROWTH_KEY] = f"{_label(workspace.options)} {left}"


def _left(model: ir.Model, options: Options) -> int | None:
    """How many bytes are left of the same allowance, if the model says so."""
    label, _, number = model.metadata_props.get(GROWTH_KEY, "").partition(" ")
    return int(number) if label == _label(options) and _NUMBER.fullmatch(number) else None


def _label(options: Options) -> str:
    return _DEFAULT if options.max_growth is None else str(options.max_growth)


def freeze_initializers(model: ir.Model) -> None:
    """Make constants of inputs that have a value, which a caller could replace by another.

    Args:
        model: The model, which changes.
    """
    for value in [value for value in model.graph.inputs if value.name in model.graph.initializers]:
        model.graph.inputs.remove(value)


MAX_ROUNDS = 10
"""How often levels run again while those above them change something."""

_ENDLESS = f"all {MAX_ROUNDS} rounds of levels changed the graph"


class Pipeline:
    """The same transformers, with the same options, on the same original, as often as it is wanted.

    Transformers are the same instances each time: an `apply` that does not do the same to the same graph each time
    cannot be replayed.

    Args:
        source: The original, as `load` takes it, but no stream.
        options: Options of the run.
        selected: Transformers and their levels.

    Attributes:
        original_bytes: Bytes of the original's constants: the allowed growth depends on them.
        resized: The inputs of which a fixed size has changed; known once the original has been loaded.
        nonempty: The dimensions of the inputs that are never 0, as the caller says; likewise.
        is_readable: Whether the ONNX Runtime here reads the original's IR version, likewise.
        changes: How its inputs and outputs have been changed, likewise.
        ports: What they are in its file, likewise.
        figures: The size of what its file holds, likewise, if that is another than what is optimized.
    """

    def __init__(self, source: Source, options: Options, selected: Sequence[Selected]) -> None:
        self._source = Kept(source) if isinstance(source, str | os.PathLike) else source
        self.options = options
        self.selected = tuple(selected)
        self.original_bytes = 0
        self.resized: frozenset[str] = frozenset()
        self.nonempty: frozenset[str] = frozenset()
        self.is_readable = True
        self.changes: tuple[InterfaceChange, ...] = ()
        self.ports: tuple[Port, ...] = ()
        self.figures: ModelFigures | None = None

    def unchanged(self, token: CancellationToken = NEVER) -> ir.Model:
        """Load the original as it is, in an IR version that is read here, whatever becomes of its file meanwhile.

        Args:
            token: Cancellation token.
        """
        model = load(self._source, token)
        self.is_readable = model.ir_version <= releases.newest_ir(releases.installed())
        releases.lower_ir_version(model, releases.installed(), token)
        return model

    def original(self, token: CancellationToken = NEVER) -> ir.Model:
        """Load the original, with the inputs and outputs that are asked for: what results are compared with.

        Args:
            token: Cancellation token.

        Raises:
            UsageError: If it cannot have them.
        """
        model = self.unchanged(token)
        if not self.ports:
            self.ports = ports_of(model)
        if changes.are_asked(self.options):
            if self.figures is None:
                self.figures = figures(model, token)
            self.changes = changes.change(model, self.options, token)
        return model

    def load(self, token: CancellationToken = NEVER) -> ir.Model:
        """Load the original, its inputs in the sizes that are asked for.

        Args:
            token: Cancellation token.

        Raises:
            UsageError: If it has no such inputs or dimensions, the sizes contradict each other, or they leave no output
                an element.
        """
        model = self.original(token)
        releases.lower_ir_version(model, releases.least(self.options), token)
        if self.options.freeze_initializers:
            freeze_initializers(model)
        self.nonempty = dimensions.matching(model, self.options.nonempty)
        dimensions.check_names(
            model, [each for each in self.options.nonempty if not dimensions.matching(model, [each])]
        )
        if self.options.dims or self.options.input_shapes:
            self._check_not_empty(token)
            self.resized = dimensions.override(model, self.options.dims, self.options.input_shapes)
        dimensions.check_names(model, self.options.dim_hints)
        return model

    def _check_not_empty(self, token: CancellationToken) -> None:
        """Refuse sizes of 0 with which nothing is computed: elsewhere 0 may stand for a size that is open.

        A past of 0 tokens is none of them: it leaves the outputs elements.
        """
        dims, input_shapes = self.options.dims, self.options.input_shapes
        asked = [f"{name}={size}" for name, size in dims.items() if size == 0]
        asked += [f"{name}={','.join(map(str, shape))}" for name, shape in input_shapes.items() if 0 in shape]
        if not asked:
            return
        model = self.original(token)
        dimensions.override(model, dims, input_shapes)
        infer_model(model, token)
        if all(0 in (dims_of(value) or ()) for value in model.graph.outputs):
            raise UsageError(
                f"with {', '.join(asked)} no output has any element, and nothing is computed: leave it out, and the"
                " size stays open"
            )

    def manager(self, observers: Iterable[Observer], left_out: Collection[str]) -> GraphTransformerManager:
        """A manager of the selected transformers.

        Args:
            observers: Observers of the run.
            left_out: Names of transformers that do not run.
        """
        manager = GraphTransformerManager(
            self.options.steps,
            options=self.options,
            observers=observers,
            on_error="raise" if self.options.strict else "skip",
            keep_order=self.options.passes is not None,
        )
        for chosen in self.selected:
            for level in chosen.levels:
                if chosen.transformer.name not in left_out:
                    manager.register(chosen.transformer, level)
        return manager

    def workspace(self, model: ir.Model, state: RunState, token: CancellationToken) -> Workspace:
        """What transformers work in.

        Args:
            model: The original, loaded; its sparse tensors become dense ones.
            state: What the run keeps.
            token: Cancellation token.
        """
        allowance = allowed_growth(model, self.original_bytes, self.options)
        allowance -= sparse_tensors.make_dense(model, allowance, token)
        return Workspace(model, self.options, allowance, token, state)

    def finish(self, model: ir.Model, token: CancellationToken) -> None:
        """What follows the last transformer: names and declared shapes as they are written, and a check.

        Args:
            model: The model.
            token: Cancellation token.

        Raises:
            InvalidModelError: If it is broken.
        """
        declare(model, self.options, token)
        shadowed_names.restore(model, token)
        if self.options.level:
            shadowed_names.avoid_load_time_names(model, token)
        validate(model, token=token)

    def apply(self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken) -> None:
        """Apply the levels until they find nothing, even once all is inferred anew.

        Args:
            manager: From `manager`.
            workspace: From `workspace`.
            token: Cancellation token.
        """
        for _ in range(MAX_ROUNDS):
            self._apply_levels(manager, workspace, token)
            if not workspace.calls_are_outdated:
                return
            workspace.refresh(token)
        manager.warn_limit(
            TransformerLevel(self.options.level), f"{_ENDLESS}, functions and their calls in the last one too"
        )

    def _apply_levels(self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken) -> None:
        top = self.options.level
        for _ in range(MAX_ROUNDS):
            self._apply_below_groups(manager, workspace, token)
            if top < TransformerLevel.LEVEL4 or not manager.run(workspace, TransformerLevel.LEVEL4, token):
                return
        manager.warn_limit(TransformerLevel.LEVEL4, f"{_ENDLESS}, level 4 in the last one too")

    def _apply_below_groups(
        self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken
    ) -> None:
        """Apply levels 1 to 3 until none of them finds anything to do.

        Level 1 always runs again, so that what applies once a run of it sees what came later. That costs little: rules
        look near what has changed, other transformers at graphs in which something has.
        """
        lowest = TransformerLevel.LEVEL1
        higher = [level for level in (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3) if level <= self.options.level]
        manager.run(workspace, lowest, token)
        for _ in range(MAX_ROUNDS):
            changed = [manager.run(workspace, level, token) for level in higher]
            if any(changed):
                manager.run(workspace, lowest, token)
            elif lowest in manager.bound_reached or not manager.run(workspace, lowest, token):
                return
        manager.warn_limit(
            (lowest, *higher)[-1], f"{_ENDLESS}, the levels up to {(lowest, *higher)[-1].value} in the last one too"
        )
