import subprocess
import sys
import warnings

import pytest

from ortopt.analysis import providers
from ortopt.analysis.providers import CPU, CUDA, check_distributions, normalize, usable
from ortopt.errors import UsageError


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("cpu", CPU),
        ("CPU", CPU),
        ("cuda", CUDA),
        ("CUDAExecutionProvider", CUDA),
        ("cudaexecutionprovider", CUDA),
        ("coreml", "CoreMLExecutionProvider"),
        ("tensorrt", "TensorrtExecutionProvider"),
    ],
)
def test_names(name, full):
    assert normalize(name) == full


def test_every_name_of_onnxruntime_is_known():
    onnxruntime = pytest.importorskip("onnxruntime")
    assert set(onnxruntime.get_all_providers()) <= set(providers.NAMES)


@pytest.mark.parametrize(("wrong", "hint"), [("cudda", "cuda"), ("cp", "cpu"), ("", "try cpu"), ("zzzz", "try cpu")])
def test_an_unknown_name_is_an_error_with_the_nearest(wrong, hint):
    with pytest.raises(UsageError, match=hint):
        normalize(wrong)


def test_cpu_always_works():
    assert usable(CPU) == (True, "ok")


def test_a_provider_that_is_not_compiled_in_does_not():
    works, reason = usable("DmlExecutionProvider" if sys.platform != "win32" else "CoreMLExecutionProvider")
    assert not works
    assert "this onnxruntime has no" in reason


def test_the_probe_makes_no_noise_and_answers_in_time():
    code = (
        "from ortopt.analysis.providers import usable; works, why = usable('CUDAExecutionProvider'); print(works, why)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    works, why = done.stdout.strip().split(" ", 1)
    assert (works == "True") == (why == "ok")
    assert "\n" not in why


def test_without_a_driver_onnxruntime_is_not_even_imported():
    code = (
        "import ctypes, sys; from ortopt.analysis import providers\n"
        "def no(*a, **k): raise OSError('none')\n"
        "ctypes.CDLL = no; print(providers.usable(providers.CUDA), 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "(False, 'there is no NVIDIA driver here') False"


@pytest.fixture
def _fresh():
    check_distributions.cache_clear()
    yield
    check_distributions.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_two_distributions_over_each_other_are_said_once(monkeypatch):
    monkeypatch.setattr(providers, "distributions", lambda: dict.fromkeys(("onnxruntime", "onnxruntime-gpu"), "1"))
    with pytest.warns(RuntimeWarning, match="pip uninstall -y onnxruntime onnxruntime-gpu"):
        check_distributions()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_distributions()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("which", [set(), {"onnxruntime"}, {"onnxruntime-gpu"}])
def test_one_distribution_is_fine(monkeypatch, which):
    monkeypatch.setattr(providers, "distributions", lambda: dict.fromkeys(which, "1"))
    check_distributions()
