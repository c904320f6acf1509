"""Execution providers: their names, and whether they work on this machine.

``onnxruntime.get_available_providers()`` names what was compiled in, not what works: asking for CUDA on a machine
without its libraries prints errors and falls back to CPU in silence. So CUDA is probed before it is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
import importlib.metadata
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

from ortopt.analysis.needed_libraries import needed_libraries
from ortopt.errors import MissingRuntimeError, UsageError
from ortopt.option_kinds import commas

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"

# onnxruntime.get_all_providers(), kept here so that a name is checked without importing onnxruntime.
_COMMON = ("CPU", "CUDA", "Tensorrt", "NvTensorRTRTX", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi")
_OTHERS = ("VSINPU", "Js", "CoreML", "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure")
NAMES: Final = tuple(f"{stem}ExecutionProvider" for stem in (*_COMMON, *_OTHERS))

DISTRIBUTIONS: Final = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-vitisai",
    "onnxruntime-training",
    "onnxruntime-silicon",
    "ort-nightly",
    "ort-nightly-gpu",
)
"""Distributions that bring the package ``onnxruntime``: only one of them can be there."""

_CUDA_RUNTIME: Final = re.compile(r"cudart(?:64_|\.so\.)(\d+)")
_NVIDIAS: Final = re.compile(r"(lib)?(cudart|cublas|cudnn|cufft|curand|nvrtc|nvJitLink)")
OLDEST: Final = (1, 20)
"""The oldest release of ONNX Runtime that ortopt works with."""

MISSING: Final = "no ONNX Runtime is installed: pip install 'ortopt[cpu]', or 'ortopt[gpu]' for CUDA, too"
"""What to say where no distribution brings the package ``onnxruntime``."""


def normalize(name: str) -> str:
    """The full name of an execution provider: ``cpu``, ``CUDA`` and ``CPUExecutionProvider`` all work.

    Raises:
        UsageError: There is no such provider; the message has the nearest names.
    """
    wanted = name.lower().removesuffix("executionprovider")
    wanted = {"gpu": "cuda", "trt": "tensorrt"}.get(wanted, wanted)
    by_stem = {full.lower().removesuffix("executionprovider"): full for full in NAMES}
    if wanted in by_stem:
        return by_stem[wanted]
    nearest = difflib.get_close_matches(wanted, by_stem, n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(nearest)}?" if nearest else "; try cpu or cuda"
    raise UsageError(f"there is no execution provider named {name!r}{hint}")


def full_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """The full names of execution providers, in order and each once.

    Args:
        names: Names as `normalize` takes them, or a text as ``--provider`` takes it: ``"cuda,cpu"``.

    Raises:
        UsageError: There is no such provider.
    """
    named = commas((names,)) if isinstance(names, str) else names
    return tuple(dict.fromkeys(map(normalize, named)))


def require_usable(names: Iterable[str]) -> None:
    """Refuse providers that do not work here.

    Args:
        names: Full names (see `normalize`).

    Raises:
        UsageError: One of them does not.
    """
    for provider in names:
        works, reason = usable(provider)
        if not works:
            raise UsageError(f"{provider} does not work here: {reason}")


@functools.cache
def usable(provider: str) -> tuple[bool, str]:
    """Whether a provider works here, and why not (or ``"ok"``); quiet, and cheap from the second time on.

    Args:
        provider: A provider's full name (see `normalize`).
    """
    if provider == CPU:
        return True, "ok"
    if provider == CUDA:
        return _cuda_usable()
    told = unusable_runtime()
    if told:
        return False, told
    import onnxruntime

    if provider not in onnxruntime.get_available_providers():
        return False, f"this onnxruntime has no {provider}"
    return _tensorrt_usable() if provider == _TENSORRT else (True, "ok")


def missing(providers: Iterable[str]) -> dict[str, str]:
    """The providers that do not work here, each with the reason.

    Args:
        providers: Full names (see `normalize`).
    """
    answers = {provider: usable(provider) for provider in providers}
    return {provider: reason for provider, (works, reason) in answers.items() if not works}


def here(providers: Iterable[str]) -> tuple[str, ...]:
    """The providers that work here; the CPU's if none does.

    Args:
        providers: Full names (see `normalize`).
    """
    return tuple(provider for provider in providers if usable(provider)[0]) or (CPU,)


def in_place_of(providers: Iterable[str]) -> str:
    """What is run instead where providers do not work here, for people; empty if all do.

    Args:
        providers: Full names (see `normalize`).
    """
    absent = missing(providers)
    if not absent:
        return ""
    names = "; ".join(f"{name} does not work here ({reason})" for name, reason in absent.items())
    return f"{names}: results are verified on {', '.join(here(providers))}"


def _cuda_usable() -> tuple[bool, str]:
    """Driver and device first: they are what is most often missing, and they are asked without loading 1 GB."""
    devices, reason = _cuda_devices()
    if devices == 0:
        return False, reason
    told = unusable_runtime()
    if told:
        return False, told
    import onnxruntime

    if CUDA not in onnxruntime.get_available_providers():
        there = " ".join(distributions())
        removed = f"pip uninstall -y {there} && " if there else ""
        return False, f"this onnxruntime has no CUDA provider ({removed}pip install 'ortopt[gpu]')"
    needed = _needed_by_cuda(Path(onnxruntime.__file__).parent / "capi")
    missing = [name for name in needed if not _loadable(name)]
    if missing:
        return False, f"cannot load {', '.join(missing)} (pip install 'ortopt[cuda]')"
    for name in _opened_when_used(needed):
        _loadable(name)  # from a wheel, where the provider would not look
    return True, "ok"


def _tensorrt_usable() -> tuple[bool, str]:
    """Wheels for CUDA name this provider also where NVIDIA's libraries for it, which they do not bring, are missing."""
    works, reason = _cuda_usable()
    if not works:
        return False, reason
    names = ("nvinfer_10.dll", "nvonnxparser_10.dll")
    if sys.platform != "win32":
        names = ("libnvinfer.so.10", "libnvonnxparser.so.10")
    missing = [name for name in names if not _loadable(name)]
    return (False, f"cannot load {', '.join(missing)} (NVIDIA TensorRT 10)") if missing else (True, "ok")


def cuda_driver() -> ctypes.CDLL:
    """The library of the NVIDIA driver.

    Raises:
        OSError: There is none.
    """
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def _cuda_devices() -> tuple[int, str]:
    """The number of devices that the NVIDIA driver shows, and why there is none."""
    try:
        driver = cuda_driver()
    except OSError:
        return 0, "there is no NVIDIA driver here"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return 0, f"the NVIDIA driver answers with error {status}"
    return count.value, "the NVIDIA driver shows no device"


def _needed_by_cuda(folder: Path) -> list[str]:
    """NVIDIA's libraries without which ONNX Runtime's CUDA provider is not loaded: its file names them.

    They differ between releases: in older ones cuDNN and cuFFT are among them.

    Args:
        folder: Where the provider is.
    """
    file = folder / (
        "onnxruntime_providers_cuda.dll" if sys.platform == "win32" else "libonnxruntime_providers_cuda.so"
    )
    try:
        return [name for name in needed_libraries(file) if _NVIDIAS.match(name)]
    except OSError:  # a build that has the provider elsewhere; ONNX Runtime says what it misses
        return []


def _opened_when_used(needed: Sequence[str]) -> list[str]:
    """The libraries that the provider opens by name when a kernel first uses them: without them it works otherwise."""
    found = next(filter(None, map(_CUDA_RUNTIME.search, needed)), None)
    if found is None:
        return []
    major = int(found[1])
    fft = 12 if major >= 13 else 11  # cuFFT's own number
    if sys.platform == "win32":
        return ["cudnn64_9.dll", f"cufft64_{fft}.dll"]
    return ["libcudnn.so.9", f"libcufft.so.{fft}"]


def _loadable(library: str) -> bool:
    """Whether the loader finds the library, or one of NVIDIA's wheels has it.

    What a wheel has stays loaded, so that onnxruntime's provider, which finds libraries by name, finds it too.
    """
    for candidate in (library, *_in_wheels(library)):
        try:
            ctypes.CDLL(candidate, mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        except OSError:
            continue
        return True
    return False


def _in_wheels(library: str) -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in ("lib", "bin", "lib/x86_64", "bin/x86_64"):
            yield from sorted(str(path) for path in Path(root).glob(f"*/{folder}/{library}"))


def distributions() -> dict[str, str]:
    """The installed distributions that bring the package ``onnxruntime``, with their versions."""
    found = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def runtime() -> dict[str, Any]:
    """The version that ONNX Runtime gives when it is imported, and its providers, or why there is none."""
    if _installed() is None:
        return {"version": None, "providers": [], "error": MISSING}
    try:
        import onnxruntime

        available = onnxruntime.get_available_providers()
    except Exception as error:  # two distributions that have overwritten each other fail in many ways
        told = too_old(installed_version()) or f"it does not load: {type(error).__name__}: {error}"
        return {"version": None, "providers": [], "error": told}
    return {"version": onnxruntime.__version__, "providers": available, "error": None}


def remedy(present: Sequence[str]) -> str:
    """What to do where several distributions share the package ``onnxruntime``; empty where one has it to itself.

    Args:
        present: Their names.
    """
    if len(present) < 2:
        return ""
    kept = "onnxruntime-gpu" if "onnxruntime-gpu" in present else present[0]
    return (
        f"{' and '.join(present)} are installed over each other: one has overwritten files of the other, and removing"
        f" one breaks the other. Remedy, here to keep {kept}: pip uninstall -y {' '.join(present)} && pip install"
        f" --no-deps {kept}"
    )


def _installed() -> ModuleSpec | None:
    """Where the package ``onnxruntime`` is, whichever distribution has brought it; None where there is none."""
    spec = importlib.util.find_spec("onnxruntime")
    # A folder without code, as an uninstalled build leaves it behind, is a namespace: it has no origin.
    return None if spec is None or spec.origin is None else spec


@functools.cache
def installed_version() -> str:
    """The version of ONNX Runtime that is installed, read from its files without importing it; empty if none says."""
    spec = _installed()
    for folder in () if spec is None else spec.submodule_search_locations or ():
        stated = Path(folder) / "__init__.py"
        try:
            found = re.search(r'^__version__ = "([\w.+-]+)', stated.read_text(encoding="utf-8"), re.MULTILINE)
        except OSError:
            continue
        if found is not None:
            return found[1]
    return ""


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version; of a text that is none, more than any."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (sys.maxsize, 0) if found is None else (int(found[1]), int(found[2]))


@functools.cache
def check_installation() -> None:
    """Warn, once, where several distributions of onnxruntime are installed over each other.

    Called before the first import of onnxruntime.

    Raises:
        MissingRuntimeError: None is installed, or one that is older than `OLDEST`.
    """
    told = unusable_runtime()
    if told:
        raise MissingRuntimeError(told)
    told = remedy(tuple(distributions()))
    if told:
        warnings.warn(told, RuntimeWarning, stacklevel=2)


def unusable_runtime() -> str:
    """Why no model can run here: no ONNX Runtime is installed, or one that is too old; empty where one can."""
    return MISSING if _installed() is None else too_old(installed_version())


def too_old(version: str) -> str:
    """What to say of a version of ONNX Runtime that ortopt does not work with; empty for all others.

    Args:
        version: The version; empty where nobody knows it.
    """
    if release_of(version) >= OLDEST:
        return ""
    return f"ONNX Runtime {version} is installed, and ortopt needs {OLDEST[0]}.{OLDEST[1]} or newer"
