import subprocess
import sys
import warnings

import pytest

from ortopt.analysis import providers
from ortopt.analysis.providers import CPU, CUDA, check_installation, normalize, usable
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


@pytest.mark.parametrize("there", [False, True])
def test_a_wheel_that_names_tensorrt_needs_its_libraries(monkeypatch, there):
    import onnxruntime

    name = "TensorrtExecutionProvider"
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [name, CPU])
    monkeypatch.setattr(providers, "_cuda_usable", lambda: (False, "there is no NVIDIA driver here"))
    assert usable.__wrapped__(name) == (False, "there is no NVIDIA driver here")
    monkeypatch.setattr(providers, "_cuda_usable", lambda: (True, "ok"))
    monkeypatch.setattr(providers, "_loadable", lambda library: there)
    works, reason = usable.__wrapped__(name)
    assert works == there
    assert reason == "ok" if there else "nvinfer" in reason and "nvonnxparser" in reason


@pytest.mark.parametrize("present", [(), ("onnxruntime",), ("onnxruntime-openvino",)])
def test_a_build_without_cuda_is_to_be_removed_before_the_one_with_it(monkeypatch, present):
    import onnxruntime

    monkeypatch.setattr(providers, "_cuda_devices", lambda: (1, ""))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    monkeypatch.setattr(providers, "distributions", lambda: dict.fromkeys(present, "1"))
    works, reason = usable.__wrapped__(CUDA)
    assert not works
    removed = f"pip uninstall -y {present[0]} && " if present else ""
    assert reason == f"this onnxruntime has no CUDA provider ({removed}pip install 'ortopt[gpu]')"


def test_without_onnxruntime_no_provider_works(monkeypatch):
    monkeypatch.setattr(providers, "_installed", lambda: None)
    monkeypatch.setattr(providers, "_cuda_devices", lambda: (1, ""))
    assert usable.__wrapped__(CUDA) == (False, providers.MISSING)
    assert usable.__wrapped__("OpenVINOExecutionProvider") == (False, providers.MISSING)


@pytest.fixture
def _fresh():
    check_installation.cache_clear()
    yield
    check_installation.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_two_distributions_over_each_other_are_said_once(monkeypatch):
    monkeypatch.setattr(providers, "distributions", lambda: dict.fromkeys(("onnxruntime", "onnxruntime-gpu"), "1"))
    with pytest.warns(RuntimeWarning, match="pip uninstall -y onnxruntime onnxruntime-gpu"):
        check_installation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_installation()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("which", [set(), {"onnxruntime"}, {"onnxruntime-gpu"}])
def test_one_distribution_is_fine(monkeypatch, which):
    monkeypatch.setattr(providers, "distributions", lambda: dict.fromkeys(which, "1"))
    check_installation()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("version", ["1.19.2", "1.9.0", "0.5"])
def test_a_release_that_is_too_old_is_named_with_the_one_that_is_needed(monkeypatch, version):
    monkeypatch.setattr(providers, "installed_version", lambda: version)
    with pytest.raises(UsageError, match=rf"^ONNX Runtime {version} is installed, and ortopt needs 1\.20 or newer$"):
        check_installation()
    with pytest.raises(UsageError, match="is installed, and ortopt needs"):  # each time
        check_installation()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("version", ["1.20.0", "1.20.1+cu12", "1.32.0", "2.0", ""])
def test_other_releases_and_those_that_nobody_knows_are_taken(monkeypatch, version):
    monkeypatch.setattr(providers, "installed_version", lambda: version)
    monkeypatch.setattr(providers, "distributions", dict)
    check_installation()
