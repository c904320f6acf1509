"""A release as people install it: with pip and with uv, on the oldest and the newest Python, in fresh environments."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHONS = ("3.11", "3.13")
"""The oldest and the newest that is supported."""

PLATFORMS = {
    "x86_64-manylinux_2_28": "onnxruntime-gpu",
    "aarch64-manylinux_2_28": "onnxruntime",
    "aarch64-apple-darwin": "onnxruntime",
    "x86_64-pc-windows-msvc": "onnxruntime-gpu",
}
KEPT = "1.28.0"
MODEL = """
import onnx
text = '''<ir_version: 8, opset_import: ["" : 17]>
main (float[batch,8] x) => (float[batch,1] y) <float[8,1] w = {1,2,3,4,5,6,7,8}, float[1] b = {2}>
{ h = Identity (x) m = MatMul (h, w) y = Add (m, b) }'''
onnx.save(onnx.parser.parse_model(text), "model.onnx")
"""


@functools.cache
def interpreter(release: str) -> str | None:
    """A Python of a release that starts: the one that runs this, one of the search path, or one of pyenv."""
    if release == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return sys.executable
    found = [shutil.which(f"python{release}")]  # of pyenv, what answers only where the release is chosen
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found += [str(path) for path in sorted(root.glob(f"versions/{release}.*/bin/python"))]
    for program in filter(None, found):
        asked = subprocess.run([program, "-c", "import venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return program
    return None


@functools.cache
def uv() -> str | None:
    """The program uv: beside this Python, or on the search path."""
    return shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


class Environment:
    """A fresh environment.

    Args:
        folder: Where it is made.
        release: The Python.
        tool: What installs: ``pip`` or ``uv``.
    """

    def __init__(self, folder: Path, release: str, tool: str) -> None:
        base, program = interpreter(release), uv()
        if base is None:
            pytest.skip(f"Python {release} is not installed")
        if tool == "uv" and program is None:
            pytest.skip("uv (extra: release) is not installed")
        self.folder = folder
        self.python = folder / "env" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if tool == "uv":
            assert program is not None
            self.run(program, "venv", "--quiet", "--python", base, folder / "env")
            pip: list[str | Path] = [program, "pip"]
            self._install = [*pip, "install", "--quiet", "--python", self.python]
            self._check = [*pip, "check", "--python", self.python]
        else:
            self.run(base, "-m", "venv", folder / "env")
            pip = [self.python, "-m", "pip"]
            self._install = [*pip, "install", "--quiet", "--disable-pip-version-check"]
            self._check = [*pip, "check"]

    def install(self, *what: str) -> None:
        """Install, and ask the tool whether all requirements are met."""
        self.run(*self._install, *what)
        self.run(*self._check)

    def run(self, *command: str | Path, code: int = 0, home: bool = True) -> str:
        """What a command printed on both streams; without `home`, it has no home and no cache folder."""
        left_out = {"PYTHONPATH", "PYTHONHOME", "SOURCE_DATE_EPOCH", *(() if home else ("HOME", "XDG_CACHE_HOME"))}
        environment = {key: value for key, value in os.environ.items() if key not in left_out}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def ortopt(self, *arguments: str, code: int = 0, home: bool = True) -> str:
        """What the installed command printed."""
        return self.run(self.python.with_name("ortopt"), *arguments, code=code, home=home)

    def runtime(self) -> str:
        """The version of the installed onnxruntime."""
        return self.run(self.python, "-c", "import onnxruntime; print(onnxruntime.__version__)").strip()


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str, str], Environment]:
    return functools.partial(Environment, tmp_path)


def requirement(archives: dict[str, Path], kind: str, extras: str = "") -> str:
    """An archive of the release as a requirement."""
    name = "ortopt-zoo" if kind.startswith("zoo") else f"ortopt{extras}"
    return f"{name} @ {archives[kind].as_uri()}"


@pytest.mark.parametrize("release", PYTHONS)
@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_it_is_installed_and_works(
    tool: str, release: str, archives: dict[str, Path], made: Callable[[str, str], Environment]
) -> None:
    environment = made(release, tool)
    environment.install(requirement(archives, "wheel"))
    environment.run(environment.python, "-c", MODEL)
    environment.ortopt("info", "model.onnx")
    assert "pip install 'ortopt[cpu]'" in environment.ortopt("optimize", "model.onnx", code=1)
    assert "pip install 'ortopt[zoo]'" in environment.ortopt("info", "zoo:superres__ts13", code=1)
    environment.install(requirement(archives, "wheel", "[cpu,zoo]"), requirement(archives, "zoo wheel"))
    assert "Gemm" in environment.ortopt("optimize", "model.onnx", "-v")
    shown = environment.ortopt("optimize", "model.onnx", home=False)
    assert "by ONNX Runtime" in " ".join(shown.split())
    assert "Conv" in environment.ortopt("info", "zoo:superres__ts13")


def test_the_sdists_are_installed(archives: dict[str, Path], made: Callable[[str, str], Environment]) -> None:
    environment = made(PYTHONS[0], "uv")
    environment.install(requirement(archives, "sdist", "[cpu,zoo]"), requirement(archives, "zoo sdist"))
    assert "Conv" in environment.ortopt("info", "zoo:superres__ts13")


@pytest.mark.parametrize("tool", ["pip", "uv"])
def test_a_runtime_that_is_there_stays(
    tool: str, archives: dict[str, Path], made: Callable[[str, str], Environment]
) -> None:
    environment = made(PYTHONS[0], tool)
    environment.install(f"onnxruntime=={KEPT}")
    environment.install(requirement(archives, "wheel"))
    assert environment.runtime() == KEPT
    environment.run(environment.python, "-c", MODEL)
    assert f"by ONNX Runtime {KEPT}" in " ".join(environment.ortopt("optimize", "model.onnx").split())
    assert f"onnxruntime {KEPT}" in environment.ortopt("info", "--versions")


@pytest.mark.parametrize("release", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_extras_resolve_on_other_platforms(
    platform: str, release: str, archives: dict[str, Path], tmp_path: Path
) -> None:
    """With what there are wheels for; nothing is downloaded."""
    program = uv()
    if program is None:
        pytest.skip("uv (extra: release) is not installed")
    for extra, wanted in (("gpu", PLATFORMS[platform]), ("cuda", PLATFORMS[platform]), ("cpu", "onnxruntime")):
        asked = tmp_path / "requirements.in"
        asked.write_text(requirement(archives, "wheel", f"[{extra}]") + "\n", encoding="utf-8")
        command = [program, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
        command += ["--python-platform", platform, "--python-version", release, str(asked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        names = {line.partition("==")[0] for line in done.stdout.splitlines()}
        assert {name for name in names if name.startswith("onnxruntime")} == {wanted}
        assert any(name.startswith("nvidia-") for name in names) == (extra == "cuda" and wanted == "onnxruntime-gpu")
