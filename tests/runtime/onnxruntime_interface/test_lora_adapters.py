"""Run options with several groups: adapters, terminating, entries; what ONNX Runtime does with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, floats, session
from tests.runtime.side_by_side import Pair, alike, both, bound, called_back, quiet, same, stopped, value

TEXT = f"""{HEADER}
main (float[N,4] x, float[4] w, bfloat16[1] b) => (float[N,4] y, float[N,4] z, bfloat16[1] c) {{
    y = ortopt.group.group_0 (x, w) z = ortopt.group.group_0 (y, w) c = ortopt.group.group_1 (b) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Mul (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p) => (r) {{ r = Identity (p) }}
"""
X = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Sessions of a model whose weights are inputs with defaults: what adapters replace."""
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [1, 2, 3, 4]))
    model.graph.initializer.append(onnx.helper.make_tensor("b", onnx.TensorProto.BFLOAT16, [1], [1]))
    return both(model.SerializeToString())


_kept: list[Any] = []
"""Run options do not keep their adapters alive."""


def adapted(folder: Path, *parameters: dict[str, Any]) -> Any:
    """Run options with an adapter for each set of parameters."""
    options = onnxruntime.RunOptions()
    for i, arrays in enumerate(parameters):
        form = onnxruntime.AdapterFormat()
        form.set_adapter_version(1)
        form.set_model_version(1)
        form.set_parameters({name: value(array) for name, array in arrays.items()})
        form.export_adapter(str(folder / f"{i}.onnx_adapter"))
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(str(folder / f"{i}.onnx_adapter"))
        options.add_active_adapter(adapter)
        _kept.append(adapter)
    return options


FIVE = {"w": np.full(4, 5, np.float32)}
ADAPTERS: dict[str, tuple[dict[str, Any], ...]] = {
    "none": (),
    "one": (FIVE,),
    "two": (FIVE, {"w": np.zeros(4, np.float32)}),
    "unknown": ({"q": np.zeros(4, np.float32)},),
    "size": ({"w": np.zeros(3, np.float32)},),
    "type": ({"w": np.zeros(4)},),
    "an input without default": ({"x": np.full((1, 4), 3, np.float32)},),
    "an input and a default": (FIVE, {"x": np.full((3, 4), 3, np.float32)}),
}
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "run": lambda one, options: one.run(["z"], {"x": X}, options),
    "run with another value": lambda one, options: one.run(["z"], {"x": X, "w": X[0] * 3}, options),
    "values": lambda one, options: one.run_with_ort_values(["z", "y"], {"x": value(X)}, options),
    "values with another": lambda one, options: one.run_with_ort_values(
        ["z"], {"x": value(X), "w": value(X[0])}, options
    ),
    "binding": lambda one, options: bound(one, {"x": X}, ["z"], options).copy_outputs_to_cpu(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(pair: Pair, tmp_path: Path, name: str, call: str) -> None:
    options = adapted(tmp_path, *ADAPTERS[name])
    alike(pair, lambda one: CALLS[call](one, options), words=False)


def test_adapters_of_asynchronous_calls(pair: Pair, tmp_path: Path) -> None:
    """ONNX Runtime forgets them there."""
    options = adapted(tmp_path, FIVE)
    found, _, error = called_back(pair[1], ["z"], {"x": X}, options)
    same((found, error), ([np.full((1, 4), 25, np.float32)], ""))


@pytest.mark.parametrize("name", ["w", "b"])
def test_nothing_for_an_input_with_a_default_is_the_default(pair: Pair, name: str) -> None:
    alike(pair, lambda one: one.run(["z"], {"x": X, name: None}), words=False)


def test_terminating() -> None:
    options = stopped()
    for one in both(TWO_GROUPS):
        with pytest.raises(Exception, match="terminate flag") as said:
            one.run(None, {"x": X}, options)
        assert said.type.__name__ == "Fail"
        options.terminate = False
        one.run(None, {"x": X}, options)
        options.terminate = True


@pytest.mark.parametrize("text", ["cpu:0", "cpu:9;nonsense"])
def test_entries(text: str) -> None:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", text)
    alike(both(TWO_GROUPS), lambda one: one.run(None, {"x": X}, options), words=False)


def test_a_file_for_the_optimized_model_is_left_out_and_said(tmp_path: Path) -> None:
    options = quiet(optimized_model_filepath=str(tmp_path / "optimized.onnx"))
    with pytest.warns(RuntimeWarning, match="optimized_model_filepath is left out"):
        session(TWO_GROUPS, sess_options=options).run(None, {"x": floats(2, 4)})
    assert not [*tmp_path.iterdir()]
