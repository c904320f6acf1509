"""Weights in the sessions of groups, without copies where ONNX Runtime knows a way.

Tried with onnxruntime 1.31, 128 MB of weights and two sessions: a session that is given OrtValues
(``add_external_initializers``) copies each; ``add_initializer`` shares them, but graph optimizations do not see them;
file contents in memory are copied too. Only *external data in a file* are mapped: nothing is copied, whatever the
offset. So a weight that lies in a file, in one of external data or inside the .onnx file itself, is declared as
external data at its place there: by its name in a folder that the session is told, which other files cannot be in; ONNX
Runtime 1.20 cannot be told, and takes whole paths. What lies in memory only is written into the session's model.

A weight that several sessions use is packed by each. Turning that off would save the memory, and was measured (2048 x
2048, one thread): 0.8 of the time for one row, but 6 times for 4 rows and 1.5 times for 64. So it stays on, unless the
caller's ``session.disable_prepacking`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir
from msgspec import Struct

from ortopt.runtime.onnxruntime_internals import folders_are_named
from ortopt.serialization.mapped_tensors import MappedFile, MappedTensor

FOLDER_KEY: Final = "session.model_external_initializers_file_folder_path"
"""The session option that says where the files of external data of a model in memory are."""

_MIN_MAPPED: Final = 1024
_READING_IN_PLACE: Final = frozenset({"Gather", "GatherElements", "GatherND"})
"""Ops whose kernels pack nothing, with weights that are large: tables of embeddings."""


class Placed(Struct, frozen=True):
    """A model with its weights.

    Attributes:
        model: The serialized model.
        folder: Where the files that it refers to are, None if it refers to none.
        kept: What must not be closed as long as a session uses the model.
    """

    model: bytes
    folder: str | None
    kept: tuple[MappedFile, ...]

    @property
    def entries(self) -> dict[str, str]:
        """The configuration entries of its sessions."""
        return {} if self.folder is None else {FOLDER_KEY: self.folder}


def place(model: onnx.ModelProto, weights: Mapping[str, ir.TensorProtocol]) -> Placed:
    """Give a model its initializers.

    Args:
        model: The model; it is changed.
        weights: Its constants by name.
    """
    folder: str | None = None
    kept: dict[int, MappedFile] = {}
    for name, tensor in weights.items():
        file = _file_of(tensor)
        if file is not None:
            path = Path(file.path).resolve()
            if folder is None and folders_are_named():
                folder = str(path.parent)
            if folder in (None, str(path.parent)):
                assert isinstance(tensor, MappedTensor)
                _refer(model.graph.initializer.add(), name, tensor, str(path) if folder is None else path.name)
                kept[id(file)] = file
                continue
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = name
        model.graph.initializer.append(proto)
    return Placed(model.SerializeToString(), folder, tuple(kept.values()))


def held_bytes(nodes: Iterable[onnx.NodeProto], weights: Mapping[str, ir.TensorProtocol]) -> int:
    """Bytes of a model's weights that a session on the CPU has for itself, at most.

    Those in memory are copied, and those in files may be packed for the kernels that read them; what lies in a file and
    is only looked up in costs nothing.

    Args:
        nodes: The model's nodes.
        weights: Its constants by name.
    """
    packed: set[str] = set()
    pending = [*nodes]
    while pending:
        node = pending.pop()
        in_place = node.domain == "" and node.op_type in _READING_IN_PLACE
        packed.update(node.input[1:] if in_place else node.input)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                packed.update(output.name for output in graph.output)
                pending.extend(graph.node)
    return sum(tensor.nbytes for name, tensor in weights.items() if name in packed or _file_of(tensor) is None)


def _file_of(tensor: ir.TensorProtocol) -> MappedFile | None:
    """The file that holds a tensor and can be found under its name, or None."""
    if not isinstance(tensor, MappedTensor) or tensor.nbytes < _MIN_MAPPED:
        return None
    source = tensor.raw.source
    return source if isinstance(source, MappedFile) and source.is_at(source.path) else None


def _refer(proto: onnx.TensorProto, name: str, tensor: MappedTensor, location: str) -> None:
    proto.name = name
    proto.data_type = tensor.dtype.value
    proto.dims.extend(tensor.shape.numpy())
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (
        ("location", location),
        ("offset", str(tensor.raw.offset)),
        ("length", str(tensor.raw.length)),
    ):
        proto.external_data.add(key=key, value=value)
