"""Models in the memory of torch, with the real package: what ``torch.onnx.export(..., dynamo=True)`` returns."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ortopt

torch = pytest.importorskip("torch", reason="torch is not installed here: make test-integrations installs it")
pytest.importorskip("onnxscript", reason="onnxscript is not installed here: torch exports with it")


def exported(module: Any, *inputs: Any, **options: Any) -> Any:
    """The program; what torch itself is warned of is its own matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.onnx.export(module.eval(), inputs, dynamo=True, verbose=False, **options)


@pytest.fixture(scope="module")
def module() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32), torch.nn.GELU(approximate="tanh"), torch.nn.LayerNorm(32)]
    return torch.nn.Sequential(*layers, torch.nn.Dropout(0.5), torch.nn.Linear(32, 4)).eval()


@pytest.fixture(scope="module")
def program(module: Any) -> Any:
    return exported(module, torch.randn(2, 32), dynamic_shapes=({0: "batch"},))


def outputs(model: Any, x: Any) -> np.ndarray[Any, Any]:
    with ortopt.InferenceSession(model, providers="cpu") as session:
        return np.asarray(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


def test_a_program_is_optimized_verified_and_stays_as_it_was(module: Any, program: Any) -> None:
    before = program.model_proto.SerializeToString(deterministic=True)
    result = ortopt.optimize(program, level=2)
    assert result.verified
    assert program.model_proto.SerializeToString(deterministic=True) == before
    x = torch.randn(3, 32)
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_allclose(outputs(result, x), want, atol=1e-5)
    np.testing.assert_allclose(outputs(program, x), want, atol=1e-5)


def test_weights_that_no_pass_changes_are_those_of_torch_not_copies(module: Any, program: Any) -> None:
    result = ortopt.optimize(program, verify=False)
    held = {parameter.data_ptr() for parameter in module.parameters()}
    tensors = [value.const_value for value in result.model.graph.initializers.values()]
    weights = [tensor.numpy() for tensor in tensors if tensor is not None and tensor.nbytes >= 4 * 32 * 32]
    assert weights
    assert {weight.ctypes.data for weight in weights} <= held


def test_its_result_is_written_whole(module: Any, program: Any, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    saved = ortopt.optimize(program, verify=False).save(path)
    assert saved.path == path
    assert saved.nbytes == path.stat().st_size > sum(p.numel() * 4 for p in module.parameters())
    x = torch.randn(1, 32)
    np.testing.assert_allclose(outputs(path, x), module(x).detach().numpy(), atol=1e-5)


def test_a_part_of_a_program(program: Any) -> None:
    cut = program.model.graph[0].outputs[0].name
    part = ortopt.extract(program, outputs=cut)
    assert [value.name for value in part.model.graph.outputs] == [cut]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_that_numpy_has_not_and_has(dtype: str) -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(16, 16).to(getattr(torch, dtype))
    program = exported(linear, torch.randn(2, 16).to(getattr(torch, dtype)))
    result = ortopt.optimize(program, level=1, verify=False)
    proto = result.to_proto()
    assert {tensor.data_type for tensor in proto.graph.initializer} == {onnx.TensorProto.DataType.Value(dtype.upper())}
    weight = next(tensor for tensor in proto.graph.initializer if len(tensor.dims) == 2)
    expected = linear.weight.detach().view(torch.uint16).numpy()
    found = np.frombuffer(weight.raw_data, np.uint16).reshape(16, 16)
    assert np.array_equal(found, expected) or np.array_equal(found, expected.T)


def test_conditions_and_several_outputs() -> None:
    class Branches(torch.nn.Module):  # type: ignore[name-defined, misc, unused-ignore]
        def forward(self, x: Any) -> Any:
            y = torch.cond(x.sum() > 0, lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0]
            return y * 2, {"more": y - 3}

    result = ortopt.optimize(exported(Branches(), torch.randn(4, 4)))
    assert result.verified
    assert len(result.model.graph.outputs) == 2
