"""Which release of ONNX Runtime reads a model: by its opset, its IR version, and ONNX Runtime's own ops in it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import kernels, providers
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.options import Options
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.semantics.domains import MICROSOFT

Release: TypeAlias = tuple[int, int]
"""Major and minor version: patches read what their release reads."""

_DATA: Final = Path(__file__).parent / "data" / "onnxruntime-releases.json"


class Requirement(Struct, frozen=True):
    """What a model needs to be loaded.

    Attributes:
        onnxruntime: The first release of ONNX Runtime that reads it; None where ops of others leave that open.
        only_onnxruntime: Ops that the ONNX specification does not have, as ``com.microsoft::Gelu``; empty where any
            runtime that has the opset will do.
    """

    onnxruntime: str | None
    only_onnxruntime: tuple[str, ...]

    @property
    def any_runtime(self) -> bool:
        """Whether the model keeps to the ONNX specification."""
        return not self.only_onnxruntime


UNKNOWN: Final = Requirement(None, ())


def parse_release(text: str) -> Release:
    """A version as a release, e.g. ``1.23`` or ``1.23.2``.

    Raises:
        UsageError: If it is none.
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.\w+)*(?:[+-].*)?$", text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no version of ONNX Runtime; write e.g. 1.23")
    return int(found[1]), int(found[2])


def shown(release: Release) -> str:
    """A release as people write it."""
    return f"{release[0]}.{release[1]}"


@functools.cache
def installed() -> Release:
    """The release that is installed, read from its files without importing it; the newest known one without any."""
    return parse_release(providers.installed_version() or _data()["newest"])


def least(options: Options) -> Release:
    """The oldest release that a result must run on; the installed one, unless the run says so."""
    return options.min_onnxruntime or installed()


def of_opset(version: int) -> Release:
    """The first release that reads an opset of ai.onnx."""
    return _first(_data()["opset"], version)


def of_ir(version: int) -> Release:
    """The first release that reads an IR version."""
    return _first(_data()["ir"], version)


def newest_opset(release: Release) -> int:
    """The newest opset of ai.onnx that a release reads."""
    return _newest(_data()["opset"], release)


def newest_ir(release: Release) -> int:
    """The newest IR version that a release reads."""
    return _newest(_data()["ir"], release)


def of_op(domain: str, op: str) -> Release:
    """The first release that knows an op of ONNX Runtime's own."""
    text = _data()["ops"].get(f"{domain}::{op}")
    return (1, 0) if text is None else parse_release(text)


def of_node(node: ir.Node) -> Release:
    """The first release that knows a node's op of ONNX Runtime's own, with the attributes that the node has."""
    return max(of_op(node.domain, node.op_type), *_of_attributes(node), (1, 0))


def _of_attributes(node: ir.Node) -> list[Release]:
    """The releases in which an op of ONNX Runtime's own got attributes that a node has."""
    later = _data()["attributes"].get(f"{node.domain}::{node.op_type}", {}) if node.domain else {}
    return [parse_release(text) for name, text in later.items() if name in node.attributes]


def requirement(model: ir.Model, token: CancellationToken = NEVER) -> Requirement:
    """What a model needs to be loaded; linear in its nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    own: dict[str, Release] = {}
    foreign: set[str] = set()
    for node, version in _ops(model, token):
        domain, op = node.domain, node.op_type
        if kernels.is_official(domain, op, version):
            continue
        name = f"{domain or 'ai.onnx'}::{op}"
        if domain == MICROSOFT or domain in STANDARD_DOMAINS:
            own[name] = max(own.get(name, (1, 0)), of_node(node))
        else:
            foreign.add(name)
    bodies = [model.opset_imports, *(function.opset_imports for function in model.functions.values())]
    opsets = [of_opset(imports[""]) for imports in bodies if "" in imports]
    first = max([of_ir(model.ir_version), *opsets, *own.values()], default=(1, 0))
    return Requirement(None if foreign else shown(first), tuple(sorted({*own, *foreign})))


def _ops(model: ir.Model, token: CancellationToken) -> Iterator[tuple[ir.Node, int]]:
    """A node of each op of a model, for each opset and release that it needs; calls of its own functions apart."""
    seen: set[tuple[str, str, int, Release]] = set()
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        imports = body.opset_imports
        for node in token.checked(body.all_nodes()):
            version = imports.get(node.domain, 1)
            key = node.domain, node.op_type, version, max(_of_attributes(node), default=(1, 0))
            if key not in seen and node.op_identifier() not in model.functions:
                seen.add(key)
                yield node, version


def _first(table: Mapping[str, str], version: int) -> Release:
    """The entry of the least listed version that is not below a version."""
    known = sorted(map(int, table))
    at = next((one for one in known if one >= version), None)
    if at is None:  # newer than what the table knows: whatever comes after it, and after what is here
        major, minor = max(parse_release(_data()["newest"]), installed())
        return major, minor + 1
    return parse_release(table[str(at)])


def _newest(table: Mapping[str, str], release: Release) -> int:
    """The largest listed version of which the entry is not after a release."""
    return max((int(version) for version, first in table.items() if parse_release(first) <= release), default=0)


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return data


__all__ = [
    "Release",
    "Requirement",
    "installed",
    "least",
    "newest_ir",
    "newest_opset",
    "of_ir",
    "of_node",
    "of_op",
    "of_opset",
    "parse_release",
    "requirement",
    "shown",
]
