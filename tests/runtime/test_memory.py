"""How long values live, and where their memory comes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.sessions import _FIXED_THRESHOLD, GROUPS, activations
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.values.tensors import elements
from tests.releases import needs, since
from tests.runtime.models import FUNCTION, HEADER, floats
from tests.runtime.side_by_side import PARALLEL, SEQUENTIAL, check, quiet

PROC = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="no /proc here")
ARENA = "sessions that tell their memories, by which groups get one arena"

COUNT = 6
NEGATION = '<domain: "ortopt.group", opset_import: ["" : 17]> group_{} (p) => (r) {{ r = Neg (p) }}'
FUNCTIONS = "\n".join(NEGATION.format(i) for i in range(COUNT))
CHAIN = f"""{HEADER} main (float[N] x) => (float[N] y) {{
    a = ortopt.group.group_0 (x) b = ortopt.group.group_1 (a) c = ortopt.group.group_2 (b)
    d = ortopt.group.group_3 (c) e = ortopt.group.group_4 (d) y = ortopt.group.group_5 (e) }} {FUNCTIONS}"""
IN_A_LOOP = f"""{HEADER} main (float[N] x) => (float[N] y) <int64 n = {{3}}, bool go = {{1}}> {{
    y = Loop (n, go, x) <body = turn (int64 i, bool g, float[N] v) => (bool h, float[N] w) {{
        h = Identity (g) a = ortopt.group.group_0 (v) b = ortopt.group.group_1 (a) w = ortopt.group.group_2 (b) }}> }}
    {FUNCTIONS}"""
# of two outputs one is read at once, the other at the end, and a third by nobody but through a shape
SEPARATE = f"""{HEADER} main (float[N] x) => (float[N] y) {{
    a, late, unread = ortopt.group.split (x) b = ortopt.group.group_1 (a) c = ortopt.group.group_2 (b)
    d = ortopt.group.group_3 (c) y = ortopt.group.join (d, late) }}
    {FUNCTION} split (p) => (q, r, s) {{
        q = Neg (p) r = Abs (p) s = Relu (p) }}
    {FUNCTION} join (p, q) => (r) {{ r = Add (p, q) }}
    {FUNCTIONS}"""


MODES = pytest.mark.parametrize("mode", [SEQUENTIAL, PARALLEL], ids=["sequential", "parallel"])


def _options(mode: Any) -> Any:
    return quiet(intra_op_num_threads=1, inter_op_num_threads=2, execution_mode=mode)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each call of a group whose results, of groups called before, are still there once the call has begun."""
    found: list[set[str]] = []
    made: dict[str, Any] = {}
    run = GroupRunner.__call__

    def watched(self: GroupRunner, values: list[Any], options: Any) -> list[Any]:
        found.append({name for name, value in made.items() if value() is not None})
        results = list(elements(run(self, values, options)))
        for one, value in zip(self.spec.outputs, results, strict=True):
            made[f"{self.spec.name}.{one.name}"] = weakref.ref(value)
        return results

    monkeypatch.setattr(GroupRunner, "__call__", watched)
    return found


@MODES
def test_values_are_freed_at_their_last_use(alive: list[set[str]], mode: Any) -> None:
    check(CHAIN, {"x": floats(4)}, sess_options=_options(mode))
    assert alive == [set(), *({f"group_{i}.r"} for i in range(COUNT - 1))]


@MODES
def test_values_are_freed_at_their_last_use_each_of_a_group_by_itself(alive: list[set[str]], mode: Any) -> None:
    check(SEPARATE, {"x": floats(4)}, sess_options=_options(mode))
    assert alive == [
        set(),
        {"split.q", "split.r"},
        {"split.r", "group_1.r"},
        {"split.r", "group_2.r"},
        {"split.r", "group_3.r"},
    ]


def test_values_are_freed_at_their_last_use_in_a_loop(alive: list[set[str]]) -> None:
    check(IN_A_LOOP, {"x": floats(4)})
    # what the body was given lives as long as it runs, as in ONNX Runtime
    assert [len(one) for one in alive] == [0, 1, 1, 1, 2, 2, 1, 2, 2]


def _child(code: str, *arguments: str) -> dict[str, Any]:
    """What a process of its own prints: of memory, and of what is registered for all of it."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **_FIXED_THRESHOLD},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


PRELUDE = """
import gc, json, os, sys, warnings
import numpy as np, onnx, onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as binding
import ortopt
import ortopt.runtime.session
from benchmarks.sessions import _memory, activations
from ortopt.runtime.execution.arena import ENTRY

MB = 1 << 18

def options(**given):
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 4
    for key, value in given.items():
        setattr(made, key, value)
    return made

def opting_in():
    made = options()
    made.add_session_config_entry(ENTRY, "1")
    return made

def plain(model, chosen=None):
    return onnxruntime.InferenceSession(model, chosen or options(), providers=["CPUExecutionProvider"])

def grouped(model, chosen=None):
    return ortopt.InferenceSession(model, chosen or options(), providers=["CPUExecutionProvider"])

def register(megabytes, kind=binding.OrtAllocatorType.ORT_ARENA_ALLOCATOR):
    where = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg(megabytes << 20, -1, -1, -1))

def fits(session, elements):
    try:
        session.run(None, {"x": np.ones(elements, np.float32)})
    except Exception as error:
        assert "bfc_arena" in str(error), error
        return False
    return True

def shared(session):
    return sum("1" == one.session_options.get_session_config_entry(ENTRY)
               for group in session._session.context.groups for one in group.sessions() if entered(one))

def entered(one):
    try:
        one.session_options.get_session_config_entry(ENTRY)
    except RuntimeError:
        return False
    return True

model = activations(8).SerializeToString()
"""

HELD = """
start = _memory()
session = (plain if sys.argv[1] == "plain" else grouped)(activations(int(sys.argv[2])).SerializeToString())
x = {"x": np.ones(16 * MB, np.float32)}
before = _memory()
for _ in range(3):
    session.run(None, x)
after = _memory()
del session
gc.collect()
print(json.dumps({
    "steady": after["RssAnon"] - start["RssAnon"] - 16, "peak": after["VmHWM"] - start["VmRSS"] - 16,
    "left": _memory()["RssAnon"] - start["RssAnon"] - 16}))
"""


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return _child(HELD, "plain", "8")


@PROC
@pytest.mark.parametrize("groups", GROUPS)
def test_memory_of_groups_is_that_of_one_session(groups: int, plain: dict[str, Any]) -> None:
    if groups > 1:
        needs(1, 23, ARENA)
    mine = _child(HELD, "grouped", str(groups))
    assert mine["steady"] <= 1.1 * plain["steady"], (plain, mine)
    assert mine["peak"] <= 1.1 * plain["peak"], (plain, mine)
    assert mine["left"] <= 8, mine  # it is given back when the session is gone: 1 MB stays, and code that was read


@since(1, 23, ARENA)
@PROC
def test_memory_of_other_sessions_is_their_own_before_and_after() -> None:
    """Plain sessions neither take part in the groups' arena nor have an arena less than before."""
    found = _child("""
x = np.ones(16 * MB, np.float32)
before = plain(model)
first = before.run(None, {"x": x})[0]
session = grouped(model)
assert np.array_equal(session.run(None, {"x": x})[0], first)
assert shared(session) == 8
after = plain(model)
assert np.array_equal(after.run(None, {"x": x})[0], first)
assert np.array_equal(before.run(None, {"x": x})[0], first)
for one in (before, after):
    assert not entered(one._sess)
held = _memory()["RssAnon"]
del one, after, before, first
gc.collect()
gone = held - _memory()["RssAnon"]
assert session.run(None, {"x": x})[0].shape == x.shape
print(json.dumps({"gone": gone}))
""")
    assert found["gone"] >= 90  # two arenas of their own


def test_memory_of_an_arena_that_a_caller_registered_stays_his() -> None:
    """Bounded for his own sessions: groups neither replace it nor use it up, unless he lets them."""
    found = _child("""
register(24)
his = plain(model, opting_in())
assert fits(his, 4 * MB) and not fits(plain(model, opting_in()), 16 * MB)
session = grouped(model)
ours = fits(session, 16 * MB), shared(session)
bounded = not fits(plain(model, opting_in()), 16 * MB)
still = fits(his, 4 * MB)
asked = grouped(model, opting_in())
both = fits(asked, 4 * MB), fits(asked, 16 * MB), shared(asked)
print(json.dumps({"ours": ours, "bounded": bounded, "still": still, "asked": both}))
""")
    assert found == {"ours": [True, 0], "bounded": True, "still": True, "asked": [True, False, 8]}


@since(1, 23, ARENA)
def test_memory_of_an_arena_that_a_caller_registers_later_is_his() -> None:
    found = _child("""
first = grouped(model)
before = fits(first, 16 * MB), shared(first)
register(24)
his = not fits(plain(model, opting_in()), 16 * MB)
second = grouped(model)
after = fits(first, 16 * MB), fits(second, 16 * MB), shared(second)
bounded = not fits(plain(model, opting_in()), 16 * MB)
print(json.dumps({"before": before, "his": his, "after": after, "bounded": bounded}))
""")
    assert found == {"before": [True, 8], "his": True, "after": [True, True, 0], "bounded": True}


def test_memory_without_an_arena_is_as_the_caller_says() -> None:
    """He wants none, or says which allocators his sessions use, or has registered one that is no arena."""
    found = _child("""
without = grouped(model, options(enable_cpu_mem_arena=False))
said = options()
said.add_session_config_entry(ENTRY, "0")
alone = grouped(model, said)
register(0, binding.OrtAllocatorType.ORT_DEVICE_ALLOCATOR)
registered = grouped(model)
print(json.dumps([[fits(one, MB), shared(one)] for one in (without, alone, registered)]))
""")
    assert found == [[True, 0], [True, 0], [True, 0]]


@since(1, 23, ARENA)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_memory_of_a_forked_child_is_not_of_an_arena_whose_lock_may_be_held() -> None:
    found = _child("""
warnings.simplefilter("ignore")
parent = grouped(model)
assert fits(parent, MB)
child = os.fork()
if child == 0:
    own = grouped(model)
    os._exit(0 if fits(own, MB) and not shared(own) else 1)
status = os.waitpid(child, 0)[1]
print(json.dumps([status, fits(parent, MB), shared(parent)]))
""")
    assert found == [0, True, 8]


@since(1, 23, ARENA)
def test_memory_of_specialised_sessions_and_of_several_models_is_one_arenas() -> None:
    found = _child("""
first = ortopt.InferenceSession(model, options(), providers=["cpu"], specialize_after=1)
second = grouped(model)
for size in (MB, 2 * MB):
    assert fits(first, size) and fits(second, size)
made = first._session.context.maker._made
print(json.dumps([len(made), sum(map(entered, made)), shared(second)]))
""")
    assert found == [24, 24, 8]


def test_the_model_of_the_benchmark_is_one() -> None:
    for groups in GROUPS:
        onnx.checker.check_model(activations(groups))
