"""A pass that does not return is interrupted at the deadline, if that was asked for; what was done before is kept."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortopt import Context, GraphTransformer, optimize
from ortopt.cancellation import CancellationToken
from ortopt.optimization import transformation
from ortopt.optimization.transformation import Watchdog
from ortopt.system import threads
from ortopt.testing import parse
from tests.verification.wrong_passes import Loops, LoopsInTheFramework

MODEL = "main (float[N,4] x) => (float[N,4] y) { a = Identity (x) b = Relu (a) y = Tanh (b) }"


def stopped(kind: type[GraphTransformer]) -> Any:
    return optimize(
        parse(MODEL),
        transformers=[kind()],
        passes=f"identity_elimination,{kind.name}",
        timeout=0.3,
        enforce_timeout=True,
        verify=False,
    )


@pytest.mark.parametrize("kind", [Loops, LoopsInTheFramework])
def test_a_pass_that_loops_for_ever_costs_only_itself(
    kind: type[GraphTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformation, "PATIENCE", 0.3)
    optimize(parse(MODEL), passes="identity_elimination", verify=False)  # imports what else would take of the time
    started = time.monotonic()
    result = stopped(kind)
    assert result.stopped
    assert time.monotonic() - started < 10
    assert [node.op_type for node in result.model.graph] == ["Relu", "Tanh"]


def test_afterwards_calls_are_profiled_as_ever() -> None:
    """CPython 3.11 never came back from the first of them while it thought that an exception was still pending."""
    code = """if True:
        import sys
        from tests.optimization.test_watchdog import stopped
        from tests.verification.wrong_passes import Loops
        assert stopped(Loops).stopped
        calls = []
        sys.setprofile(lambda frame, event, argument: calls.append(event))
        (lambda: None)()
        sys.setprofile(None)
        print(calls[:2])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "['call', 'return']\n"


def test_in_another_thread_too() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(stopped(Loops)))
    thread.start()
    thread.join(20)
    assert found
    assert found[0].stopped


def test_by_default_a_timeout_is_cooperative() -> None:
    """No thread is started, and no exception is raised in a pass that is busy for longer: it ends, and stays."""
    ended: list[bool] = []

    class Busy(GraphTransformer):
        """Works beyond the deadline."""

        name = "busy"

        def apply(self, graph: ir.Graph, context: Context) -> bool:
            end = time.monotonic() + 2 + transformation.GRACE + 0.3
            while time.monotonic() < end:
                assert not [thread for thread in threads.running() if thread.name == "ortopt-watchdog"]
            ended.append(True)
            return False

    result = optimize(parse(MODEL), transformers=[Busy()], passes="identity_elimination,busy", timeout=2, verify=False)
    assert ended
    assert result.stopped
    assert [node.op_type for node in result.model.graph] == ["Relu", "Tanh"]


def test_without_a_deadline_nobody_watches() -> None:
    with Watchdog(CancellationToken()) as dog:
        assert not [thread for thread in threads.running() if thread.name == "ortopt-watchdog"]
    assert not dog.fired


@pytest.mark.parametrize("timeout", [100.0, 1e300])
def test_it_ends_with_what_it_watches(timeout: float) -> None:
    with Watchdog(CancellationToken(timeout=timeout)):
        pass
    assert not [thread for thread in threads.running() if thread.name == "ortopt-watchdog"]


def test_what_is_folded_ends_with_the_deadline() -> None:
    """Each run of ONNX Runtime is bounded, but there may be many: what fails together is tried by halves."""
    weight = ir.tensor(np.eye(1500, dtype=np.float32), name="m0")
    chain = " ".join(f"m{i + 1} = MatMul (m{i}, m0)" for i in range(400))
    model = parse(f"""main (float[N] x, float[1500,1500] m0) => (float[N] y) {{
        {chain} s = ReduceSum <keepdims = 0> (m400) y = Add (x, s) }}""")
    value = model.graph.inputs[1]
    value.const_value = weight
    model.graph.register_initializer(value)
    del model.graph.inputs[1]
    started = time.monotonic()
    result = optimize(model, timeout=1.0, verify=False)
    assert time.monotonic() - started < 8
    assert result.stopped
