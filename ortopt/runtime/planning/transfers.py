"""Steps that copy a value from one device to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice


class ToHost:
    """Copies a value to the host's memory, if it is elsewhere.

    Args:
        device: Where values may be.
        name: What to call it on the timeline.
    """

    __slots__ = ("_device", "_name")

    def __init__(self, device: CudaDevice, name: str) -> None:
        self._device = device
        self._name = name

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Copy."""
        return (self._device.download(values[0], self._name),)


class ToDevice(ToHost):
    """Copies a value to a device, if it is in the host's memory."""

    __slots__ = ()

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Copy; a value for which there is no memory stays, and the step that reads it raises the error."""
        try:
            return (self._device.upload(values[0], self._name),)
        except RuntimeError:
            return values
