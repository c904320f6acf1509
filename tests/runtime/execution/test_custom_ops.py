"""A library of custom ops in the session options: the groups that need it have it, wherever its ops stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from ortopt import InferenceSession, UsageError
from ortopt.runtime.execution.group_spec import SpecLibrary
from ortopt.runtime.execution.session_maker import SessionMaker
from ortopt.testing import parse
from tests.runtime.models import Twice, plain_session
from tests.runtime.side_by_side import same, value

HEADER = '<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1, "ai.onnx.contrib" : 1, "my" : 1]>'
GROUP = '<domain: "ortopt.group", opset_import: ["" : 17, "ai.onnx.contrib" : 1, "my" : 1]>'
PLAIN_GROUP = f"{GROUP} group_0 (p) => (r) {{ q = Neg (p) r = Relu (q) }}"
MODELS = {
    "whole": "y = ai.onnx.contrib.StringUpper (s) a = Neg (x) z = Relu (a) }",
    "between": f"y = ai.onnx.contrib.StringUpper (s) z = ortopt.group.group_0 (x) }} {PLAIN_GROUP}",
    "in a group": f"""y = ortopt.group.group_1 (s) z = ortopt.group.group_0 (x) }} {PLAIN_GROUP}
        {GROUP} group_1 (p) => (r) {{ r = ai.onnx.contrib.StringUpper (p) }}""",
    "in a function of a group": f"""y = ortopt.group.group_1 (s) z = ortopt.group.group_0 (x) }} {PLAIN_GROUP}
        {GROUP} group_1 (p) => (r) {{ r = my.Loud (p) }}
        <domain: "my", opset_import: ["ai.onnx.contrib" : 1]> Loud (p) => (r) {{
            r = ai.onnx.contrib.StringUpper (p) }}""",
    "in a branch of a group": f"""c = Constant <value = bool {{1}}> () y = ortopt.group.group_1 (s, c)
        z = ortopt.group.group_0 (x) }} {PLAIN_GROUP}
        {GROUP} group_1 (p, c) => (r) {{ r = If (c) <
            then_branch = t () => (u) {{ u = ai.onnx.contrib.StringUpper (p) }},
            else_branch = f () => (v) {{ v = ai.onnx.contrib.StringLower (p) }}> }}""",
    "its type is not known": f"""a = ai.onnx.contrib.StringLength (s) b = Cast <to = 8> (a)
        y = ai.onnx.contrib.StringUpper (b) z = ortopt.group.group_0 (x) }} {PLAIN_GROUP}""",
}
FEED = {"s": np.array(["ab", "c"], object), "x": np.array([-1, 2], np.float32)}


def text(name: str) -> str:
    return f"{HEADER} main (string[N] s, float[M] x) => (string[N] y, float[M] z) {{ {MODELS[name]}"


@pytest.mark.parametrize("name", [name for name in MODELS if "group" in name and name != "whole"])
def test_a_group_knows_whether_it_needs_a_library(name: str) -> None:
    model = parse(text(name))
    library = SpecLibrary(model)
    found = {}
    for node in model.graph:
        function = library.group_of(node)
        if function is not None:
            found[function.name] = library.of_call(node, function, [True])[0].foreign
    assert found == {"group_0": False, "group_1": True}


def options_with_library(threads: int = 1) -> Any:
    """Session options with the ops of onnxruntime-extensions: the one library of custom ops that can be installed."""
    extensions = pytest.importorskip("onnxruntime_extensions", reason="onnxruntime-extensions is not installed")
    options = onnxruntime.SessionOptions()  # which say what there is to say: nothing, as a test asks
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(extensions.get_library_path())
    return options


@pytest.mark.parametrize(
    "more", [{}, {"run_type": "debug"}, {"run_type": "reference"}, {"specialize_after": 2}], ids=str
)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_onnx_runtimes(name: str, more: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    source = onnx.parser.parse_model(text(name)).SerializeToString()
    options = options_with_library()
    capfd.readouterr()  # what importing the library says
    theirs = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    mine = InferenceSession(source, options, providers=["cpu"], **more)
    for _ in range(4):
        same(theirs.run(None, FEED), mine.run(None, FEED))
    assert mine.statistics.fallbacks == 0
    assert capfd.readouterr().err == ""
    assert (options.intra_op_num_threads, options.profile_file_prefix) == (1, "onnxruntime_profile_")


def test_only_groups_that_need_the_library_use_the_callers_own_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, bool] = {}
    make = SessionMaker.make

    def watched(self: SessionMaker, *args: Any, **named: Any) -> Any:
        seen[named["label"]] = named["foreign"]
        return make(self, *args, **named)

    monkeypatch.setattr(SessionMaker, "make", watched)
    options = options_with_library(threads=4)
    InferenceSession(parse(text("in a group")), options, providers=["cpu"]).run(None, FEED)
    assert seen == {"group_0": False, "group_1": True}
    assert options.intra_op_num_threads == 4


def test_host_ops_beside_a_library() -> None:
    source = text("whole").replace("Neg (x)", "my.Twice (x)")
    mine = InferenceSession(parse(source), options_with_library(), providers=["cpu"], host_ops=[Twice])
    y, z = mine.run(None, FEED)
    assert (y.tolist(), z.tolist()) == (["AB", "C"], [0, 4])


def test_initializers_beside_a_library_are_refused() -> None:
    options = options_with_library()
    kept = value(np.array([5], np.float32))
    options.add_initializer("w", kept)
    source = text("in a group").replace("{ y =", "<float[1] w = {1}> { v = Add (x, w) y =").replace("(x) }", "(v) }", 1)
    with pytest.warns(RuntimeWarning, match="configuration entries"), pytest.raises(UsageError, match="library"):
        InferenceSession(parse(source), options, providers=["cpu"])


@pytest.mark.parametrize("name", ["whole", "in a group"])
def test_without_the_library_the_error_is_onnx_runtimes(name: str) -> None:
    with pytest.raises(Exception, match=r"StringUpper.* is not a registered function") as expected:
        plain_session(text(name))
    with pytest.raises(type(expected.value), match=r"StringUpper.* is not a registered function"):
        InferenceSession(parse(text(name)), providers=["cpu"]).run(None, FEED)
