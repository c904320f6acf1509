"""Which models the arguments of a check name: files, folders, patterns, manifests, and models of the zoo."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from ortopt import zoo
from ortopt.errors import UsageError
from ortopt.regression import manifest as manifests
from ortopt.regression.case import Case, split_name
from ortopt.regression.manifest import Manifest
from ortopt.terminal_text import quoted

ZOO: Final = "zoo:"
SUFFIX: Final = ".onnx"


class _Zoo(NamedTuple):
    """What one argument names: models, folders and patterns, and what is said of them."""

    manifest: Manifest
    root: Path
    models: list[str]


class Selection(NamedTuple):
    """What the arguments of a check name.

    Attributes:
        cases: The cases, sorted by name.
        baseline: The baseline that a manifest names; None if none does.
        zoos: What each argument names.
    """

    cases: list[Case]
    baseline: Path | None
    zoos: list[_Zoo]

    def idle(self) -> Iterator[str]:
        """What a manifest says, and of which there is nothing: patterns without a model, for people."""
        for manifest, root, models in self.zoos:
            if manifest.path is None:
                continue
            for said, argument in zip(manifest.models, models, strict=True):
                if next(_named([argument], root), None) is None:
                    yield f"{quoted(str(manifest.path))}: there is no model in {quoted(said)}"
            for rule in manifest.rules:
                if "removed" not in rule.said and not any(
                    rule.matches(case.model, case.configuration) for case in self.cases
                ):
                    yield f"{quoted(str(manifest.path))}: [[model]] {quoted(rule.pattern)} matches no model"

    def vanished(self, names: Iterable[str], said: Mapping[str, Any]) -> list[Case]:
        """Cases that the arguments name, and that there are none of any more: their models are gone from a folder.

        Args:
            names: The names of cases that there were.
            said: What the command line says of all models, as arguments of `Settings.merged`.
        """
        here = {case.name for case in self.cases}
        found = []
        for name in sorted(set(names) - here):
            model, configuration = split_name(name)
            manifest = next((zoo.manifest for zoo in self.zoos if _names(zoo, model)), None)
            if manifest is not None:
                found.append(Case(model, configuration, None, manifest.settings(model, configuration, said)))
        return found


def cases(arguments: Sequence[str], said: Mapping[str, Any]) -> Selection:
    """The cases that arguments name, and the baseline that a manifest names.

    Args:
        arguments: What the user named.
        said: What the command line says of all models, as arguments of `Settings.merged`.

    Raises:
        UsageError: If there is no model, one is named twice, or a manifest makes no sense.
        InvalidModelError: If a manifest cannot be read.
    """
    found: dict[str, Case] = {}
    baselines = []
    zoos = [_zoo_of(argument) for argument in arguments]
    for manifest, root, models in zoos:
        if manifest.baseline is not None:
            baselines.append(manifest.baseline)
        for name, path in _named(models, root):
            for configuration in manifest.names:
                case = Case(name, configuration, path, manifest.settings(name, configuration, said))
                if found.setdefault(case.name, case).path != path:
                    raise UsageError(
                        f"two models are named {quoted(case.name)}: give the folder that holds both, or run it there"
                    )
    if not found:
        raise UsageError(f"there is no model in {', '.join(map(quoted, arguments))}")
    if len(set(baselines)) > 1:
        raise UsageError("the manifests name different baselines: --baseline says which")
    return Selection([found[name] for name in sorted(found)], baselines[0] if baselines else None, zoos)


def _zoo_of(argument: str) -> _Zoo:
    """The manifest of an argument, the root that names are relative to, and the models."""
    if not argument:  # an unset variable of the shell
        raise UsageError("a model is given an empty name")
    path = Path(argument)
    if path.suffix == ".toml":
        manifest = manifests.read(path)
    elif path.is_dir() and (path / manifests.NAME).is_file():
        manifest = manifests.read(path / manifests.NAME)
    else:
        return _Zoo(Manifest(), Path.cwd(), [argument])
    assert manifest.path is not None
    folder = manifest.path.parent
    models = [model if model.startswith(ZOO) else str(folder / model) for model in manifest.models]
    return _Zoo(manifest, folder.absolute(), models)


def _named(models: Sequence[str], root: Path) -> Iterator[tuple[str, Path | None]]:
    """The models with their names; the path of one of the zoo is None."""
    for argument in models:
        if argument.startswith(ZOO):
            yield from ((f"{ZOO}{name}", None) for name in _of_zoo(argument.removeprefix(ZOO)))
            continue
        for path, base in files(argument):
            yield _name(path, base, root), path


def _names(zoo: _Zoo, model: str) -> bool:
    """Whether an argument would name a model if it were there."""
    return any(_would_name(argument, zoo.root, model) for argument in zoo.models)


def _would_name(argument: str, root: Path, model: str) -> bool:
    if ZOO in (argument[: len(ZOO)], model[: len(ZOO)]):
        pattern = argument.removeprefix(ZOO) or "*"
        is_many = argument.startswith(ZOO) and glob.has_magic(pattern)
        return is_many and fnmatch.fnmatchcase(model, ZOO + pattern)
    path = Path(argument)
    parts = PurePosixPath(model).parts
    if not model.endswith(SUFFIX) or any(part.startswith(".") for part in parts):
        return False
    if path.is_dir():
        inside = PurePosixPath(_name(path / SUFFIX, path, root)).parts[:-1]
        return parts[: len(inside)] == inside
    if path.exists() or not glob.has_magic(argument):
        return False
    pattern_path = Path(os.path.abspath(path))  # noqa: PTH100
    return pattern_path.is_relative_to(root) and _matches(parts, pattern_path.relative_to(root).parts)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a pattern names a file, or a folder that it is in."""
    reached = _after_any_folders({0}, pattern)
    for part in parts:
        stay = {place for place in reached if place < len(pattern) and pattern[place] == "**"}
        step = {place + 1 for place in reached - stay if fnmatch.fnmatchcase(part, pattern[place])}
        reached = _after_any_folders(stay | step, pattern)
        if len(pattern) in reached:
            return True
    return False


def _after_any_folders(places: set[int], pattern: Sequence[str]) -> set[int]:
    """Places in a pattern, with those that are reached where ``**`` stands for no folder."""
    reached = set(places)
    for place in range(len(pattern)):
        if place in reached and pattern[place] == "**":
            reached.add(place + 1)
    return reached


def _of_zoo(pattern: str) -> list[str]:
    names = [name for name in zoo.names() if fnmatch.fnmatchcase(name, pattern or "*")]
    if not names:
        zoo.skeleton(pattern)  # says which names are near
    return names


def files(argument: str) -> list[tuple[Path, Path]]:
    """The models that a path or a pattern names, sorted, each with the folder that stands for the argument.

    A path to which there is nothing is a model that cannot be read: whoever loads it says so.

    Args:
        argument: A file, a folder with models at any depth, or a pattern.
    """
    path = Path(argument)
    if path.is_dir():
        return [(model, path) for model in below(path)]
    if path.exists() or not glob.has_magic(argument):
        return [(path, path.parent)]
    found = []
    for match in sorted(map(Path, glob.glob(argument, recursive=True))):  # noqa: PTH207 -- it may be absolute
        found += [(model, path.parent) for model in (below(match) if match.is_dir() else [match])]
    return list(dict(found).items())


def below(folder: Path) -> list[Path]:
    """The models in a folder and those below it, sorted; hidden ones, and folders that are links, are left alone."""
    found = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(at, name) for name in names if name.endswith(SUFFIX) and not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _name(path: Path, base: Path, root: Path) -> str:
    """The path below the root; of what lies elsewhere, that below the folder above the argument."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 -- a link keeps its name
    above = Path(os.path.abspath(base))  # noqa: PTH100
    for folder in (Path(os.path.abspath(root)), above.parent if base != path.parent else above):  # noqa: PTH100
        if absolute.is_relative_to(folder):
            return absolute.relative_to(folder).as_posix()
    return absolute.name
