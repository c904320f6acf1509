"""``ortopt-zoo.toml``: which models belong to a zoo, and how each is run and compared (docs/ci.md describes it)."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ortopt import api, documents
from ortopt.errors import UsageError
from ortopt.options import declarations
from ortopt.regression.case import SPELLING, Settings, plain_options
from ortopt.regression.thresholds import parse_all
from ortopt.terminal_text import quoted

NAME: Final = "ortopt-zoo.toml"

_NOT_OURS: Final = frozenset({"strict", "timeout", "enforce_timeout", "limit", "provenance"})
"""Options of a run that a check has its own of, or that leave results unfinished."""

_TOP: Final = ("models", "baseline", "defaults", "configurations", "model")
_REASONS: Final = {"expect_failure": "expected_failure", "skip": "skip", "removed": "removed"}
"""What a manifest says of single models, with a reason; the names in `Settings`."""

_OF_MODEL: Final = ("match", "configuration", *_REASONS)
_OF_ANY: Final = ("inputs", "thorough", "thresholds", "accept_changes")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a manifest says of the models that a pattern names.

    Attributes:
        pattern: A pattern of names; ``*`` matches ``/`` too.
        configuration: The configuration that it is about; empty for all.
        said: Arguments of `Settings.merged`.
    """

    pattern: str
    configuration: str
    said: Mapping[str, Any]

    def matches(self, model: str, configuration: str) -> bool:
        """Whether it is about a model in a configuration."""
        return self.configuration in ("", configuration) and fnmatch.fnmatchcase(model, self.pattern)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A zoo as its manifest describes it.

    Attributes:
        path: The file; None where there is none.
        models: Models, folders and patterns, relative to the file's folder.
        baseline: The baseline's file; None if the manifest names none.
        defaults: Arguments of `Settings.merged` for all models.
        configurations: Arguments of `Settings.merged` by the configuration's name.
        rules: What is said of single models and patterns, in order.
    """

    path: Path | None = None
    models: tuple[str, ...] = (".",)
    baseline: Path | None = None
    defaults: Mapping[str, Any] | None = None
    configurations: Mapping[str, Mapping[str, Any]] | None = None
    rules: tuple[Rule, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The configurations; one without a name where the manifest has none."""
        return tuple(self.configurations or ("",))

    def settings(self, model: str, configuration: str, said: Mapping[str, Any]) -> Settings:
        """How a model is run: by the defaults, the command line, the configuration, and each rule about it, in order.

        Args:
            model: The model's name.
            configuration: The configuration's name.
            said: What the command line says, as arguments of `Settings.merged`.
        """
        settings = Settings().merged(**(self.defaults or {})).merged(**said)
        settings = settings.merged(**(self.configurations or {}).get(configuration, {}))
        for rule in self.rules:
            if rule.matches(model, configuration):
                settings = settings.merged(**rule.said)
        return settings


def read(path: Path) -> Manifest:
    """Read a manifest.

    Raises:
        InvalidModelError: The file cannot be read, or is no TOML.
        UsageError: It says something that makes no sense; the message names the file and the place.
    """
    content = documents.contents(path)
    try:
        data = documents.parse_toml(content)
    except ValueError as error:
        raise documents.invalid(path, "no manifest", error) from error
    try:
        return _manifest(path, data)
    except UsageError as error:
        raise UsageError(f"{quoted(str(path))}: {error}") from error


def _manifest(path: Path, data: Mapping[str, Any]) -> Manifest:
    _known(data, _TOP, "")
    folder = path.parent
    models = data.get("models", ["."])
    if not isinstance(models, list) or not models or not all(isinstance(model, str) and model for model in models):
        raise UsageError("models is a list of paths and patterns")
    configurations = _table(data, "configurations")
    rules = data.get("model", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise UsageError("each model is a table of its own: [[model]]")
    baseline = data.get("baseline")
    return Manifest(
        path,
        tuple(models),
        None if baseline is None else folder / _text("baseline", baseline),
        _said("[defaults]", _table(data, "defaults"), folder),
        {
            name: _said(f"[configurations.{name}]", _table(configurations, name), folder)
            for name in map(_configuration, configurations)
        },
        tuple(_rule(rule, folder, tuple(configurations)) for rule in rules),
    )


def _configuration(name: str) -> str:
    if not name or any(letter in name for letter in "[]"):
        raise UsageError(f"{name!r} is no name of a configuration")
    return name


def _rule(table: Mapping[str, Any], folder: Path, configurations: tuple[str, ...]) -> Rule:
    if not isinstance(table.get("match"), str):
        raise UsageError("[[model]] needs the name of a model, or a pattern: match = 'NAME'")
    where = f"[[model]] {table['match']!r}"
    configuration = _text(f"{where}: configuration", table.get("configuration", ""), empty=True)
    if configuration and configuration not in configurations:
        raise UsageError(f"{where}: there is no configuration {configuration!r}")
    said = _said(where, {key: value for key, value in table.items() if key not in _OF_MODEL}, folder)
    for key, name in _REASONS.items():
        if key in table:
            said[name] = _text(f"{where}: {key} (the reason)", table[key])
    return Rule(table["match"], configuration, said)


def _said(where: str, table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What a table says, as arguments of `Settings.merged`."""
    words = {name: name.replace("-", "_") for name in table}
    spelled = {name: SPELLING.get(word, word) for name, word in words.items()}
    table = {spelled[name]: value for name, value in table.items()}
    if len(table) < len(spelled):
        raise UsageError(f"{where} says {Counter(spelled.values()).most_common(1)[0][0]} twice")
    options = {name: value for name, value in table.items() if name not in _OF_ANY}
    known = (*(name for name in declarations() if name not in _NOT_OURS), *_OF_ANY)
    _known(options, known, where)
    for name in ("providers", "disable", "enable", "only", "custom_op_libraries", "verify_with"):
        if isinstance(options.get(name), str):
            options[name] = [part.strip() for part in options[name].split(",")]
    try:
        api.make_options(**options)
        said: dict[str, Any] = {"options": plain_options(options)} if options else {}
        if "thresholds" in table:
            said["thresholds"] = parse_all(table["thresholds"])
    except (UsageError, TypeError) as error:
        raise UsageError(f"{where}: {error}") from error
    if "inputs" in table:
        said["inputs"] = str(folder / _text(f"{where}: inputs", table["inputs"]))
    if "thorough" in table:
        if not isinstance(table["thorough"], bool):
            raise UsageError(f"{where}: thorough is true or false")
        said["thorough"] = table["thorough"]
    if "accept_changes" in table:
        said["accepted_changes"] = _accepted(where, table["accept_changes"])
    return said


def _accepted(where: str, value: Any) -> str:
    """Why changed models may be worse; empty if they may not."""
    if isinstance(value, bool):
        return "the manifest accepts changes" if value else ""
    if isinstance(value, str) and value:
        return value
    raise UsageError(f"{where}: accept_changes is true, false, or the reason")


def _known(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [name for name in table if name not in known]
    if unknown:
        raise UsageError(f"{where or 'the file'} knows no {unknown[0]!r}: there is {', '.join(known)}")


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{name} is a table")
    return table


def _text(what: str, value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise UsageError(f"{what} is a text")
    return value
