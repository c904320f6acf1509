"""Wheel, sdist and editable install bring the passes as ortopt.transformers, and leave `transformers` to its owner.

Of ortopt-zoo, the distribution of the folder models/, they need nothing; with it, they find its models.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ortopt import __version__
from ortopt.analysis.providers import OLDEST

pytestmark = pytest.mark.xdist_group("packaging")  # what they share is costly

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("wheel", "editable")
"""How ortopt is installed; from an sdist comes the same wheel, which a test looks at."""

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# A pass that no pyproject.toml can know of.
NEW_PASS = '''"""Nothing to gain."""

import onnx_ir as ir

from ortopt.options import TransformerLevel
from ortopt.transformer import Context, GraphTransformer


class BrandNew(GraphTransformer):
    """Leave ``x`` as ``x``."""

    levels = (TransformerLevel.LEVEL1,)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        return False
'''
THEIR_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "transformers"
version = "99.0"
"""
WHOSE = "import transformers; print(transformers.__version__, transformers.__file__)"


def run(*command: str | Path, cwd: Path) -> str:
    """What the command printed; what it said on stderr is part of the failure."""
    done = attempt(*command, cwd=cwd)
    assert done.returncode == 0, f"{command} said\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def attempt(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that may fail; it sees nothing of this checkout."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def build(project: Path, *targets: str) -> Path:
    """Of a project, its archives in the folder dist."""
    run(sys.executable, "-m", "build", "--no-isolation", *(f"--{target}" for target in targets), cwd=project)
    return project / "dist"


def environment(folder: Path) -> Path:
    """The Python of a fresh environment that finds our dependencies where they are, after its own packages."""
    venv.create(folder, with_pip=importlib.util.find_spec("pip") is None)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder))
    outer = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (packages / "zz_outer.pth").write_text("\n".join(outer) + "\n")
    return python


def install(python: Path, *what: str | Path) -> None:
    """Nothing is fetched, and what the outer environment has of the same name is left alone."""
    offline = ("--isolated", "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", "--quiet")
    run(python, "-m", "pip", "install", "--no-compile", *offline, *what, cwd=python.parent)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with one pass more, and its wheel and sdist in dist/."""
    copy = tmp_path_factory.mktemp("project") / "ortopt"
    leftovers = shutil.ignore_patterns(".git", ".venv*", "*_cache", "__pycache__", "build", "dist", "demo", "bench-out")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=leftovers)
    (copy / "transformers" / "brand_new_family").mkdir(parents=True)
    (copy / "transformers" / "brand_new_family" / "brand_new.py").write_text(NEW_PASS)
    build(copy, "wheel", "sdist")
    return copy


@pytest.fixture(scope="module", params=KINDS)
def installed(request: pytest.FixtureRequest, project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment in which ortopt is installed, one for each way to install it."""
    python = environment(tmp_path_factory.mktemp(f"installed-{request.param}"))
    install(python, *source(project, request.param))
    return python


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that stands for Hugging Face's: a regular package of that name."""
    their_project = tmp_path_factory.mktemp("theirs")
    (their_project / "pyproject.toml").write_text(THEIR_PROJECT)
    (their_project / "transformers").mkdir()
    (their_project / "transformers" / "__init__.py").write_text("__version__ = '99.0'\n")
    [wheel] = build(their_project, "wheel").iterdir()
    return wheel


def source(project: Path, kind: str) -> tuple[str | Path, ...]:
    return ("--editable", project) if kind == "editable" else tuple((project / "dist").glob("*.whl"))


def passes(project: Path) -> set[str]:
    folder = project / "transformers"
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


def elsewhere(python: Path) -> Path:
    return python.parent


def test_the_folders_of_passes_have_no_init() -> None:
    assert not list((ROOT / "transformers").rglob("__init__.py"))


def test_the_link_is_a_tracked_relative_link() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    mode, *_ = run("git", "ls-files", "--stage", "ortopt/transformers", cwd=ROOT).split()
    assert mode == "120000"
    assert os.readlink(ROOT / "ortopt" / "transformers") == "../transformers"  # noqa: PTH115 -- as text, unresolved


def test_the_wheel_holds_the_passes_below_ortopt(project: Path) -> None:
    [wheel] = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = archive.infolist()
    names = {member.filename for member in members}
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ortopt"}
    below = {name.removeprefix("ortopt/transformers/") for name in names if name.startswith("ortopt/transformers/")}
    assert below == passes(project)
    assert "ortopt/py.typed" in names
    assert not [name for name in names if name.endswith(".onnx") or "/tests/" in name or "/models/" in name]
    assert {f"ortopt/reporting/page/assets/{name}" for name in ("report.js", "report.css", "LICENSES.txt")} <= names
    assert not [member.filename for member in members if stat.S_ISLNK(member.external_attr >> 16)]


def test_the_sdist_holds_the_folder_and_neither_models_nor_tests(project: Path) -> None:
    [sdist] = (project / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    files = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert all(member.isfile() or member.isdir() for member in members)
    assert {name for name in files if name.startswith("transformers/")} == {
        f"transformers/{name}" for name in passes(project)
    }
    assert not [name for name in files if name.startswith("ortopt/transformers")]
    assert {"pyproject.toml", "README.md", "LICENSE", "SECURITY.md", "docs/installation.md"} <= files
    assert not [name for name in files if name.endswith(".onnx") or name.startswith(("models/", "tests/"))]


def test_a_clone_without_links_builds_the_same_wheel(project: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(project, clone, symlinks=True, ignore=shutil.ignore_patterns("dist"))
    (clone / "ortopt" / "transformers").unlink()
    (clone / "ortopt" / "transformers").write_text("../transformers")  # what git writes where links are unknown
    [wheel] = build(clone, "wheel").iterdir()
    [original] = (project / "dist").glob("*.whl")
    assert wheel.read_bytes() == original.read_bytes()


def test_the_sdist_builds_the_same_wheel(project: Path, tmp_path: Path) -> None:
    [sdist] = (project / "dist").glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path)
    [unpacked] = tmp_path.iterdir()
    [wheel] = build(unpacked, "wheel").iterdir()
    [original] = (project / "dist").glob("*.whl")
    assert wheel.read_bytes() == original.read_bytes()


def test_the_passes_are_importable(installed: Path, project: Path) -> None:
    listed = run(
        installed,
        "-c",
        "from ortopt.discovery import pass_files as f; print(*(m for m in f.paths() if f.load(m)))",
        cwd=elsewhere(installed),
    )
    files = {f"{module.replace('.', '/')}.py" for module in listed.split()}
    assert files == {name for name in passes(project) if not name.rpartition("/")[2].startswith("_")}


def test_without_theirs_nothing_of_ours_answers(request: pytest.FixtureRequest, installed: Path) -> None:
    """An editable install has the repository's root on its path, and so the bare folder, which is no module."""
    if _real_version() is not None:
        pytest.skip("Hugging Face's transformers is installed; another test looks at it")
    code = (
        "import importlib.util as u; s = u.find_spec('transformers'); print(None if s is None else s.origin or 'bare')"
    )
    found = run(installed, "-c", code, cwd=elsewhere(installed))
    assert found == ("bare" if request.node.callspec.params["installed"] == "editable" else "None")


HAS_MODELS = "from ortopt import zoo; print(zoo.skeleton('superres__ts13').is_file(), 'superres__ts13' in zoo.names())"


@pytest.fixture(scope="module")
def zoo_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of ortopt-zoo."""
    copy = tmp_path_factory.mktemp("zoo") / "models"
    shutil.copytree(ROOT / "models", copy)
    [wheel] = build(copy, "wheel").iterdir()
    return wheel


def test_a_checkout_alone_has_the_models(request: pytest.FixtureRequest, installed: Path) -> None:
    done = attempt(installed, "-c", HAS_MODELS, cwd=elsewhere(installed))
    is_checkout = request.node.callspec.params["installed"] == "editable"
    assert done.stdout.strip() == ("True True" if is_checkout else "")
    assert ("pip install 'ortopt[zoo]'" in done.stderr) != is_checkout


def test_without_the_zoo_one_line_names_the_extra_and_with_it_models_are_found(
    project: Path, zoo_wheel: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path / "environment")
    install(python, *source(project, "wheel"))
    for arguments in (["zoo", "list"], ["info", "zoo:superres__ts13"], ["zoo", "grow", "superres__ts13", "a.onnx"]):
        done = attempt(python, "-m", "ortopt", *arguments, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr == "ortopt: the models of the zoo are not installed: pip install 'ortopt[zoo]'\n"
    assert "Conv" in run(python, "-m", "ortopt", "info", "zoo:light_inception_v1", cwd=tmp_path)  # of the onnx wheel
    install(python, zoo_wheel)
    assert run(python, "-c", HAS_MODELS, cwd=tmp_path) == "True True"
    assert "Conv" in run(python, "-m", "ortopt", "info", "zoo:superres__ts13", cwd=tmp_path)


def test_the_wheel_of_the_zoo_holds_the_models_alone(zoo_wheel: Path) -> None:
    with zipfile.ZipFile(zoo_wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    models = {path.name for path in (ROOT / "models").glob("*.onnx")}
    assert len(models) == len(names) - 3
    assert names == {f"ortopt_zoo/{name}" for name in (*models, "manifest.json", "blocks.json", "README.md")}


def test_both_distributions_are_released_together() -> None:
    zoo = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert zoo["version"] == __version__
    (needed,) = map(Requirement, DECLARED["optional-dependencies"]["zoo"])
    assert needed.name == zoo["name"]
    assert zoo["version"] in needed.specifier
    assert (ROOT / "models" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_a_new_pass_needs_no_reinstall(project: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(project, clone, symlinks=True, ignore=shutil.ignore_patterns("dist"))
    python = environment(tmp_path / "environment")
    install(python, "--editable", clone)
    new = clone / "transformers" / "newer_family" / "newer_still.py"
    new.parent.mkdir()
    new.write_text(NEW_PASS.replace("BrandNew", "NewerStill"))
    code = "from ortopt import registry as r; print(*(s.transformer.name for s in r.select(r.Options())))"
    assert "newer_still" in run(python, "-c", code, cwd=tmp_path).split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["theirs first", "ours first"])
def test_a_regular_transformers_wins(kind: str, order: str, project: Path, theirs: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "environment")
    steps = [(theirs,), source(project, kind)]
    for step in steps if order == "theirs first" else reversed(steps):
        install(python, *step)
    for folder in (tmp_path, project, project / "ortopt"):
        version, file = run(python, "-c", WHOSE, cwd=folder).split(maxsplit=1)
        assert version == "99.0"
        assert Path(file).parent.parent.name == "site-packages"
    run(python, "-c", "import ortopt.transformers, transformers", cwd=tmp_path)
    run(python, "-m", "pip", "uninstall", "--yes", "ortopt", cwd=tmp_path)
    assert run(python, "-c", WHOSE, cwd=tmp_path).startswith("99.0")


def test_the_real_transformers_wins(installed: Path, project: Path) -> None:
    version = _real_version()
    if version is None:
        pytest.skip("Hugging Face's transformers is not installed; a stand-in is tested above")
    for folder in (elsewhere(installed), project):
        assert run(installed, "-c", WHOSE, cwd=folder).split()[0] == version


def test_the_command_line_runs(installed: Path) -> None:
    version = run(installed, "-c", "import importlib.metadata as m; print(m.version('ortopt'))", cwd=installed.parent)
    assert version in run(installed, "-m", "ortopt", "--version", cwd=elsewhere(installed))
    assert "optimize" in run(installed.with_name("ortopt"), "--help", cwd=elsewhere(installed))
    assert "brand_new" in run(installed, "-m", "ortopt", "passes", cwd=elsewhere(installed))


def _real_version() -> str | None:
    """The version of Hugging Face's package in the environment of this test run."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


PLATFORMS = {
    "Linux on x86": ("linux", "x86_64", "onnxruntime-gpu"),
    "Linux on ARM": ("linux", "aarch64", "onnxruntime"),
    "macOS on ARM": ("darwin", "arm64", "onnxruntime"),
    "macOS on x86": ("darwin", "x86_64", "onnxruntime"),
    "Windows on x86": ("win32", "AMD64", "onnxruntime-gpu"),
    "Windows on ARM": ("win32", "ARM64", "onnxruntime"),
}


EXTRAS = {name: [*map(Requirement, texts)] for name, texts in DECLARED["optional-dependencies"].items()}


def runtimes(extra: str, environment: dict[str, str]) -> set[str]:
    """The names of the builds of ONNX Runtime that an extra brings, those of the extras that it names included."""
    found: set[str] = set()
    for needed in EXTRAS[extra]:
        if needed.marker is not None and not needed.marker.evaluate(environment):
            continue
        if needed.name == "ortopt":
            found = found.union(*(runtimes(other, environment) for other in needed.extras))
        elif needed.name.startswith("onnxruntime"):
            found.add(needed.name)
    return found


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_gets_the_onnxruntime_that_has_wheels_for_it(platform: str) -> None:
    """Of both distributions exactly one: they hold the same package."""
    system, machine, wanted = PLATFORMS[platform]
    environment = {"sys_platform": system, "platform_machine": machine}
    assert runtimes("gpu", environment) == runtimes("cuda", environment) == {wanted}
    assert runtimes("cpu", environment) == {"onnxruntime"}
    for extra in EXTRAS.keys() - {"gpu", "cuda", "cpu"}:
        assert runtimes(extra, environment) == set()


def test_ortopt_itself_installs_no_onnxruntime() -> None:
    assert not [text for text in DECLARED["dependencies"] if "onnxruntime" in text]


def test_demo_and_tests_install_the_build_that_the_platform_has() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "\nRUNTIME ?= gpu\n" in makefile
    for environment, extras in (("VENV", "$(RUNTIME)"), ("VENV_TEST", "dev,$(RUNTIME)"), ("VENV_TEST", "cuda")):
        installs = rf"^\$\({environment}\)/\.\w+:.*\n(?:\t.*\n)*\t.*--editable '\.\[{re.escape(extras)}\]'$"
        assert re.search(installs, makefile, re.MULTILINE), extras


def test_python_that_resolves_but_has_not_been_run_is_not_claimed() -> None:
    allowed = SpecifierSet(DECLARED["requires-python"])
    assert [minor for minor in range(9, 20) if f"3.{minor}" in allowed] == [11, 12, 13, 14]
    claimed = [text.rpartition(" ")[2] for text in DECLARED["classifiers"] if "Python :: 3." in text]
    assert claimed == ["3.11", "3.12", "3.13"]


def test_the_oldest_onnxruntime_is_the_one_that_the_code_checks() -> None:
    builds = [one for extra in ("cpu", "gpu") for one in EXTRAS[extra]]
    assert {str(one.specifier) for one in builds} == {">=" + ".".join(map(str, OLDEST))}
    assert len(builds) == 3


def test_every_extra_that_a_page_or_a_message_names_is_one() -> None:
    pages = [ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "Makefile", *(ROOT / "docs").rglob("*.md")]
    texts = [path.read_text(encoding="utf-8") for path in (*pages, *(ROOT / "ortopt").rglob("*.py"))]
    named = {name for text in texts for name in re.findall(r"ortopt\[(\w+)\]", text)}
    assert {"gpu", "cuda", "cpu", "zoo", "cluster", "networkx"} <= named <= EXTRAS.keys()
