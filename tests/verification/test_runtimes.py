"""Verification on another runtime, in a Python of its own."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import onnx_ir as ir
import onnxruntime
import pytest
from click.testing import CliRunner

from ortopt import RewriteRule, TransformerLevel, UsageError, VerificationError, optimize
from ortopt.cli.group import commands
from ortopt.graph.match import need
from ortopt.rule import Match
from ortopt.testing import parse
from ortopt.verification import runtimes
from ortopt.verification.process import Worker, WorkerError
from ortopt.verification.rendered_reference import RenderedReference
from ortopt.verification.verify import verify

MODEL = "main (float[2,3] x) => (float[2,3] y) { a = Relu (x) y = Neg (a) }"


def broken(tmp_path: Path, code: str) -> str:
    """A Python with an ONNX Runtime that is not right: code runs behind its import."""
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import onnxruntime\n{code}\n", encoding="utf-8")
    script = tmp_path / "python"
    text = f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n'
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return str(script)


NEGATED = """
run = onnxruntime.InferenceSession.run
def wrong(self, names, feeds, options=None):
    results = run(self, names, feeds, options)
    ops = open(self._model_path, "rb").read()
    return [-one for one in results] if b"Wrong" in ops else results
onnxruntime.InferenceSession.run = wrong
onnxruntime.__version__ = "1.2.3"
"""


def test_the_runtime_of_a_python_is_asked_for_its_name() -> None:
    assert runtimes.find(sys.executable).name == f"ONNX Runtime {onnxruntime.__version__}"
    assert runtimes.find(sys.prefix).name == f"ONNX Runtime {onnxruntime.__version__}"


@pytest.mark.parametrize("text", ["/nowhere/python", "no-such-command-on-the-path", "/"])
def test_a_python_that_is_not_there_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="there is no such Python"):
        runtimes.find(text)


OPENVINO = "OpenVINOExecutionProvider"
WITH_PROVIDER = f"""
make, providers = onnxruntime.InferenceSession.__init__, onnxruntime.InferenceSession.get_providers
def made(self, model, options=None, chosen=None, **rest):
    self.chosen = chosen
    make(self, model, options, ["CPUExecutionProvider"], **rest)
onnxruntime.InferenceSession.__init__ = made
known = ["{OPENVINO}", "CPUExecutionProvider"]
onnxruntime.InferenceSession.get_providers = lambda self: [one for one in self.chosen or known[1:] if one in known]
onnxruntime.get_available_providers = lambda: known
onnxruntime.__version__ = "1.2.3"
"""
"""An ONNX Runtime that has a provider, whose kernels are the CPU's."""

WITHOUT_IT = WITH_PROVIDER + "onnxruntime.InferenceSession.get_providers = providers"
"""One that names a provider, and makes the session on the CPU's."""

PLUGGED_IN = """
import sys, types
package = types.ModuleType("onnxruntime_ep_fast")
package.get_ep_names = lambda: ["QNNExecutionProvider"]
package.get_library_path = lambda: "/nowhere/libfast.so"
package.get_qnn_htp_path = lambda: "/nowhere/libsimulator.so"
sys.modules["onnxruntime_ep_fast"] = package
import pkgutil
pkgutil.iter_modules = lambda: [types.SimpleNamespace(name="onnxruntime_ep_fast"), types.SimpleNamespace(name="other")]
known = []
def register(name, path):
    assert not known, "it is registered"
    known.append((name, path))
onnxruntime.get_available_providers = lambda: [name for name, _ in known]
onnxruntime.register_execution_provider_library = register
device = types.SimpleNamespace(type=onnxruntime.OrtHardwareDeviceType.CPU)
onnxruntime.get_ep_devices = lambda: [types.SimpleNamespace(ep_name=name, device=device) for name, _ in known]
added = onnxruntime.SessionOptions
class Options(added):
    def add_provider_for_devices(self, devices, settings):
        (device,) = devices
        assert (device.ep_name, settings["backend_path"]) == ("QNNExecutionProvider", "/nowhere/libsimulator.so")
onnxruntime.SessionOptions = Options
onnxruntime.__version__ = "1.2.3"
"""
"""One with a provider that is a package of its own."""

ON_ITS_DEVICE = PLUGGED_IN.replace("OrtHardwareDeviceType.CPU", "OrtHardwareDeviceType.NPU").replace(
    'settings["backend_path"]) == ("QNNExecutionProvider", "/nowhere/libsimulator.so")',
    'settings) == ("QNNExecutionProvider", {})',
)
"""One that has the provider's own device, for which nothing is simulated."""


@pytest.mark.parametrize(
    ("code", "wanted", "name", "providers"),
    [
        (WITH_PROVIDER, (OPENVINO,), f"ONNX Runtime 1.2.3 with {OPENVINO}", (OPENVINO,)),
        (WITH_PROVIDER, ("CPUExecutionProvider",), "ONNX Runtime 1.2.3", ()),
        (WITH_PROVIDER, ("QNNExecutionProvider",), "ONNX Runtime 1.2.3", ()),
        (WITHOUT_IT, (OPENVINO,), "ONNX Runtime 1.2.3", ()),
        (
            PLUGGED_IN,
            ("QNNExecutionProvider",),
            "ONNX Runtime 1.2.3 with QNNExecutionProvider",
            ("QNNExecutionProvider",),
        ),
        (
            ON_ITS_DEVICE,
            ("QNNExecutionProvider",),
            "ONNX Runtime 1.2.3 with QNNExecutionProvider",
            ("QNNExecutionProvider",),
        ),
        (PLUGGED_IN, (OPENVINO,), "ONNX Runtime 1.2.3", ()),
    ],
)
def test_providers_that_work_there_are_used(
    tmp_path: Path, code: str, wanted: tuple[str, ...], name: str, providers: tuple[str, ...]
) -> None:
    runtime = runtimes.find(broken(tmp_path, code), providers=wanted)
    assert (runtime.name, runtime.providers) == (name, providers)
    (there,) = verify(parse(MODEL), parse(MODEL), runtimes=[runtime]).elsewhere
    assert (there.runtime, there.agrees) == (name, True)


def test_the_provider_of_a_run_and_of_its_target_are_asked_for(tmp_path: Path) -> None:
    python = broken(tmp_path, WITH_PROVIDER)
    result = optimize(parse(MODEL), level=1, target="openvino", verify_with=[python])
    assert result.verification is not None
    assert [there.runtime for there in result.verification.elsewhere] == [f"ONNX Runtime 1.2.3 with {OPENVINO}"]
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    result.save(path)
    done = CliRunner().invoke(
        commands, ["optimize", str(path), "-o", str(out), "--target", "openvino", "--verify-with", python]
    )
    assert done.exit_code == 0, done.output
    assert f"by ONNX Runtime 1.2.3 with {OPENVINO}" in " ".join(done.output.split())


def test_without_the_cpu_a_model_that_needs_it_is_refused(tmp_path: Path) -> None:
    options = """
Options = onnxruntime.SessionOptions
class Recording(Options):
    def add_session_config_entry(self, key, value):
        if key == "session.disable_cpu_ep_fallback":
            raise ValueError("there is no other kernel")
onnxruntime.SessionOptions = Recording
"""
    python = broken(tmp_path, WITH_PROVIDER + options)
    runtime = runtimes.find(python, providers=(OPENVINO,))
    model = tmp_path / "model.onnx"
    optimize(parse(MODEL), level=1, verify=False).save(model)
    for providers, told in (((OPENVINO, "CPUExecutionProvider"), None), ((OPENVINO,), "there is no other kernel")):
        with Worker(providers, runtime=runtime) as worker:
            worker.open(model, 100, None)
            with contextlib.nullcontext() if told is None else pytest.raises(WorkerError, match=told):
                worker.wait()


def test_a_python_without_a_runtime_is_a_usage_error(tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n', encoding="utf-8")  # type: ignore[attr-defined]
    script.chmod(0o755)
    with pytest.raises(UsageError, match="numpy and ONNX Runtime, OpenVINO or MNN"):
        runtimes.find(str(script))


def test_a_result_agrees_there_too() -> None:
    runtime = runtimes.find(sys.executable)
    outcome = verify(parse(MODEL), parse(MODEL), runtimes=[runtime])
    assert outcome.status == "verified"
    assert [(one.runtime, one.agrees, one.reason) for one in outcome.elsewhere] == [(runtime.name, True, "")]


def test_what_is_compared_as_copies_is_not_said_to_agree_there() -> None:
    runtime = runtimes.find(sys.executable)
    with RenderedReference(lambda model: model, parse(MODEL), runtimes=[runtime]) as reference:
        outcome = reference.compare(parse(MODEL))
    assert [(one.agrees, one.reason) for one in outcome.elsewhere] == [(None, "it was compared as copies")]


def test_in_this_process_there_is_no_other_runtime() -> None:
    with pytest.raises(UsageError, match="no other runtime"):
        verify(parse(MODEL), parse(MODEL), in_process=True, runtimes=[runtimes.find(sys.executable)])


def named(text: str, name: str) -> str:
    return text.replace("a =", f"[{name}] a =")


def test_a_result_that_differs_there_alone_differs(tmp_path: Path) -> None:
    runtime = runtimes.find(broken(tmp_path, NEGATED))
    outcome = verify(parse(MODEL), parse(named(MODEL, "Wrong")), runtimes=[runtime])
    assert (outcome.status, outcome.as_deployed, outcome.where) == ("differs", True, "ONNX Runtime 1.2.3")
    assert outcome.reason.startswith("on ONNX Runtime 1.2.3, output 'y': ")


def test_what_the_runtime_breaks_of_the_original_too_is_not_the_results_fault(tmp_path: Path) -> None:
    runtime = runtimes.find(broken(tmp_path, NEGATED))
    outcome = verify(parse(named(MODEL, "Wrong")), parse(named(MODEL, "Wrong")), runtimes=[runtime])
    assert outcome.status == "verified"
    (there,) = outcome.elsewhere
    assert there.reason.startswith("ONNX Runtime 1.2.3 changes the original, too: ")


class Describing(RewriteRule[ir.Value]):
    """Describe a Relu as the broken runtime does not bear."""

    name = "wrong_description"
    levels = (TransformerLevel.LEVEL1,)
    roots = ("Relu",)

    def match(self, root: ir.Node) -> Match:
        need(root.doc_string != "Wrong", "it is described so already")
        return Match((root,), lambda: ir.node("Relu", list(root.inputs), doc_string="Wrong"))


def test_a_pass_that_enables_it_is_left_out(tmp_path: Path) -> None:
    python = broken(tmp_path, NEGATED)
    result = optimize(parse(MODEL), transformers=[Describing()], level=1, verify_with=[python])
    assert result.verified
    assert [repair.rewrite.transformer for repair in result.repairs] == ["wrong_description"]


def test_without_repair_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"on ONNX Runtime 1\.2\.3"):
        optimize(
            parse(MODEL), transformers=[Describing()], level=1, verify_with=[broken(tmp_path, NEGATED)], repair=False
        )


def test_the_commands_take_it(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    optimize(parse(MODEL), level=1, verify=False).save(path)
    done = CliRunner().invoke(commands, ["optimize", str(path), "-o", str(out), "--verify-with", sys.executable])
    assert done.exit_code == 0, done.output
    compared = CliRunner().invoke(commands, ["verify", str(path), str(out), "--verify-with", sys.executable, "--json"])
    assert json.loads(compared.stdout)["elsewhere"][0]["agrees"] is True
