"""The changes of a model's inputs and outputs that options ask for, in the order in which they are made."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.interface.change import InterfaceChange
from ortopt.options import Options
from ortopt.terminal_text import quoted


def are_asked(options: Options) -> bool:
    """Whether options ask for changes that the model itself must have before a run; new names come behind it."""
    return bool(
        options.keep_outputs
        or options.drop_outputs
        or options.int32_inputs
        or options.image_inputs
        or options.dynamic_batch
    )


def change(model: ir.Model, options: Options, token: CancellationToken = NEVER) -> tuple[InterfaceChange, ...]:
    """Make the changes that options ask for, in place.

    Args:
        model: The model, as it was loaded.
        options: Options of the run.
        token: Cancellation token.

    Returns:
        The changes, in the order in which they were made.

    Raises:
        UsageError: If one does not fit the model.
        InvalidModelError: If the model does not allow one.
    """
    from ortopt.interface.batch import DynamicBatch
    from ortopt.interface.images import Images
    from ortopt.interface.int32_inputs import Int32Inputs
    from ortopt.interface.outputs import FewerOutputs

    made: list[InterfaceChange] = []
    if options.keep_outputs or options.drop_outputs:
        made.append(FewerOutputs(model, options.keep_outputs, options.drop_outputs, token))
    if options.image_inputs:
        both = next((name for name in options.image_inputs if name in options.input_shapes), None)
        if both is not None:
            raise UsageError(f"image_inputs and input_shapes name {quoted(both)}: give it its shape in a run before")
        made.append(Images(model, options.image_inputs, token))
    if options.int32_inputs:
        made.append(Int32Inputs(model, token))
    if options.dynamic_batch:
        if options.input_shapes:
            raise UsageError("dynamic_batch needs the sizes of the file: give input_shapes in a run of their own")
        made.append(DynamicBatch(model, options.dynamic_batch, token))
    return tuple(made)
