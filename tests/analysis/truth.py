"""What a model really computes, to hold inference against: every value of the main graph as an output of ORT."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.graph import symbolic
from tests.sessions import unoptimized


def parse(body: str, inputs: str = "", *, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    """A model from the text of its nodes; its outputs are the last node's, undeclared."""
    imports = f'"" : {opset}, "com.microsoft" : 1, "local" : 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: [{imports}]> main ({inputs}) => () {{ {body} }} {functions}"
    )
    for name in model.graph.node[-1].output:
        model.graph.output.add().name = name
    return model


def infer(body: str, inputs: str = "", *, opset: int = 17, functions: str = "") -> dict[str, ir.Value]:
    """The values of the main graph by name, inferred."""
    return infer_proto(parse(body, inputs, opset=opset, functions=functions))


def infer_proto(proto: onnx.ModelProto) -> dict[str, ir.Value]:
    """The values of the main graph by name, inferred."""
    model = ir.from_proto(proto)
    shapes.infer_model(model)
    values = {str(value.name): value for value in model.graph.inputs}
    values |= {str(value.name): value for node in model.graph for value in node.outputs if value.name}
    return values


def text(value: ir.Value) -> str:
    """Type and shape as the tests write them, invented dimensions as ``?``."""
    dims = shapes.dims_of(value)
    kind = "?" if value.dtype is None else value.dtype.name.lower()
    if dims is None:
        return kind
    return f"{kind}[{','.join('?' if symbolic.is_invented(dim) else str(dim) for dim in dims)}]"


def run(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor that the main graph computes, by ORT without optimization."""
    everything = onnx.ModelProto()
    everything.CopyFrom(proto)
    declared = {output.name for output in everything.graph.output}
    for node in proto.graph.node:
        for name in node.output:
            if name and name not in declared:
                everything.graph.output.add().name = name
    session = unoptimized(everything)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def check(
    body: str, inputs: str = "", feeds: Mapping[str, np.ndarray] | None = None, *, opset: int = 17, functions: str = ""
) -> dict[str, ir.Value]:
    """Infer, run, and compare types, ranks, dimensions and contents of every value; returns the inferred values."""
    return check_proto(parse(body, inputs, opset=opset, functions=functions), feeds or {})


def check_proto(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, ir.Value]:
    """As `check`, for a model."""
    values = infer_proto(proto)
    binding: dict[str, symbolic.Dim] = {}
    for declared in proto.graph.input:
        for dim, size in zip(declared.type.tensor_type.shape.dim, feeds[declared.name].shape, strict=False):
            if dim.dim_param:
                binding[dim.dim_param] = size
    for name, array in run(proto, feeds).items():
        if isinstance(array, np.ndarray):
            _compare(values[name], array, binding)
    return values


def _compare(value: ir.Value, array: np.ndarray, binding: Mapping[str, symbolic.Dim]) -> None:
    known = f"{value.name}: {text(value)}, really {array.dtype}{list(array.shape)}, {binding}"
    if value.dtype is not None and value.dtype != ir.DataType.STRING:
        assert value.dtype.numpy() == array.dtype, known
    dims = shapes.dims_of(value)
    if dims is not None:
        assert len(dims) == array.ndim, known
        for dim, size in zip(dims, array.shape, strict=True):
            number = symbolic.substitute(dim, binding)
            assert not isinstance(number, int) or number == size, known
    elements = shapes.contents(value)
    if elements is not None:
        assert array.ndim <= 1, known
        assert len(elements) == array.size, known
        for element, true in zip(elements, array.reshape(-1).tolist(), strict=True):
            number = symbolic.substitute(element, binding)
            assert not isinstance(number, int) or number == int(true), f"{known}: {elements} {array}"


SIZES = {"B": 2, "N": 3, "M": 4, "S": 6, "H": 9, "W": 11}


def feeds_for(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Zeros and ones for every input, its symbols bound as `SIZES` says."""
    feeds = {}
    for declared in proto.graph.input:
        tensor = declared.type.tensor_type
        dims = [dim.dim_value if dim.HasField("dim_value") else SIZES[dim.dim_param] for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[declared.name] = (np.arange(int(np.prod(dims))) % 2).reshape(dims).astype(dtype)
    return feeds
