"""``ortopt info --versions``: what is installed, and whether two distributions share the package onnxruntime."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from typing import Any, Final

import click

_PACKAGES: Final = ("onnx", "onnx-ir", "numpy", "ml-dtypes", "protobuf", "networkx", "rich", "click")


def describe() -> dict[str, Any]:
    """What is installed, as data that json can write."""
    from ortopt._version import __version__
    from ortopt.analysis import providers

    found = providers.distributions()
    runtime = providers.runtime()
    return {
        "schema": 1,
        "ortopt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "onnxruntime": {
            "distributions": found,
            "remedy": providers.remedy(tuple(found)),
            **runtime,
            **_abilities(runtime["version"]),
        },
    }


def _abilities(version: str | None) -> dict[str, Any]:
    """What a version of ONNX Runtime reads, and what ortopt has to do without in it."""
    from ortopt.analysis import providers, releases

    if version is None:
        return {"reads": None, "lacks": []}
    release = providers.release_of(version)
    reads = {"opset": releases.newest_opset(release), "ir_version": releases.newest_ir(release)}
    told = providers.too_old(version)
    if told:
        return {"reads": reads, "lacks": [{"what": told, "since": releases.shown(providers.OLDEST)}]}
    from ortopt.runtime.onnxruntime_internals import missing_features

    lost = [feature for feature in missing_features() if feature.lost]
    return {"reads": reads, "lacks": [{"what": feature.lost, "since": feature.release} for feature in lost]}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print what is installed, and end the command: the callback of the option.

    Args:
        context: The command's context.
        wanted: Whether the option was given.
    """
    if not wanted or context.resilient_parsing:
        return
    data = describe()
    if context.params.get("as_json"):
        click.echo(json.dumps(data, indent=2))
    else:
        _print(data)
    context.exit()


def _print(data: dict[str, Any]) -> None:
    from ortopt.cli.warning import warn
    from ortopt.reporting import report, tables

    out = report.console(sys.stdout)
    runtime = data["onnxruntime"]
    installed = ", ".join(f"{name} {version}" for name, version in runtime["distributions"].items())
    rows = [("ortopt", data["ortopt"]), ("Python", data["python"]), ("platform", data["platform"])]
    rows += [(name, version or "not installed") for name, version in data["packages"].items()]
    rows += [
        ("ONNX Runtime", runtime["version"] or f"does not load: {runtime['error']}"),
        ("installed as", installed or "a package that no distribution is known of"),
        ("providers", ", ".join(runtime["providers"])),
    ]
    if runtime["reads"] is not None:
        rows.append(("reads", f"opset {runtime['reads']['opset']}, IR version {runtime['reads']['ir_version']}"))
    rows += [(f"lacks, {lack['since']} has", lack["what"]) for lack in runtime["lacks"]]
    out.print(tables.table(("", ""), rows, text=2, headless=True))
    if runtime["remedy"]:
        warn(runtime["remedy"])


__all__ = ["describe", "show"]
