"""Which release of ONNX Runtime reads a model: by its opset, its IR version, and ONNX Runtime's own ops in it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import onnx
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import kernel_history, kernels, providers, targets
from ortopt.analysis.kernel_history import Release
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.semantics import STANDARD_DOMAINS
from ortopt.semantics.domains import MICROSOFT
from ortopt.serialization.opset_imports import METADATA_FROM_IR
from ortopt.terminal_text import node_name

_DATA: Final = Path(__file__).parent / "data" / "onnxruntime-releases.json"


class Requirement(Struct, frozen=True):
    """What a model needs to be loaded.

    Attributes:
        onnxruntime: The first release of ONNX Runtime that reads it; None where ops of others leave that open.
        only_onnxruntime: Ops that the ONNX specification does not have, as ``com.microsoft::Gelu``; empty where any
            runtime that has the opset will do.
        opset: Its opset of ai.onnx; None where it imports none.
        because: What in it no older release reads: ``opset 23``, else the ops whose form is that new, else the IR
            version.
        with_nothing: The first release that runs it where a batch or a length is 0; None if all do that read it.
    """

    onnxruntime: str | None
    only_onnxruntime: tuple[str, ...]
    opset: int | None = None
    because: tuple[str, ...] = ()
    with_nothing: str | None = None

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


def of_runtime(name: str) -> Release:
    """The release in the name of an ONNX Runtime: ``ONNX Runtime 1.32.0 with QNNExecutionProvider``.

    Args:
        name: The name (`ortopt.verification.start.Runtime`).

    Raises:
        UsageError: There is none.
    """
    return parse_release(name.partition(" with ")[0].rpartition(" ")[2])


def shown(release: Release) -> str:
    """A release as people write it."""
    return f"{release[0]}.{release[1]}"


@functools.cache
def installed() -> Release:
    """The release that is installed, read from its files without importing it; the newest known one without any."""
    return parse_release(providers.installed_version() or _data()["newest"])


def least(options: Options) -> Release:
    """The oldest release that a result must run on; the installed one, unless the run says so."""
    declared = targets.of(options.target)
    apart = installed() if declared is None or declared.release is None else parse_release(declared.release)
    return options.min_onnxruntime or min(installed(), apart)


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


def requirement(model: ir.Model, token: CancellationToken = NEVER) -> Requirement:
    """What a model needs to be loaded; linear in its nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    by_opset, by_op, with_nothing = (0, 0), dict[str, Release](), kernel_history.ANY
    own: set[str] = set()
    foreign: set[str] = set()
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        imports = body.opset_imports
        if "" in imports:
            by_opset = max(by_opset, of_opset(imports[""]))
        for node in token.checked(body.all_nodes()):
            version, op = imports.get(node.domain, 1), f"{node.domain or 'ai.onnx'}::{node.op_type}"
            if kernel_history.is_listed(node):
                by_op[op] = max(by_op.get(op, (0, 0)), kernel_history.first_release(node, version))
                with_nothing = max(with_nothing, kernel_history.first_release_of_nothing(node, version))
            if node.op_identifier() not in model.functions and not _is_official(node.domain, node.op_type, version):
                known = node.domain == MICROSOFT or node.domain in STANDARD_DOMAINS
                (own if known else foreign).add(op)
    by_ir, opset = of_ir(model.ir_version), model.opset_imports.get("")
    first = max(by_ir, by_opset, *by_op.values())
    newest = max((body.opset_imports.get("", 0) for body in bodies), default=0)
    because = (f"opset {newest}",) if by_opset == first else tuple(sorted(op for op in by_op if by_op[op] == first))
    return Requirement(
        None if foreign else shown(first),
        tuple(sorted({*own, *foreign})),
        opset,
        because or (f"IR version {model.ir_version}",),
        shown(with_nothing) if with_nothing > first and not foreign else None,
    )


def unmet(model: ir.Model, release: Release, token: CancellationToken = NEVER) -> list[str]:
    """Why a release does not read a model, or computes it wrongly: each reason once, with a node where one is to blame.

    Args:
        model: The model.
        release: The release.
        token: Cancellation token.
    """
    reasons: dict[str, str] = {}

    def note(what: str, needed: Release, node: str = "") -> None:
        if needed > release:
            reasons.setdefault(f"{what} needs ONNX Runtime {shown(needed)}", f" (node {node})" if node else "")

    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    opsets = [of_opset(body.opset_imports[""]) for body in bodies if "" in body.opset_imports]
    if of_ir(model.ir_version) > max(opsets, default=release):  # else the opset needs it, and is named
        note(f"IR version {model.ir_version}", of_ir(model.ir_version))
    for body in bodies:
        if "" in body.opset_imports:
            note(f"opset {body.opset_imports['']}", of_opset(body.opset_imports[""]))
        for node in token.checked(body.all_nodes()):
            if kernel_history.is_listed(node):
                needed = kernel_history.first_release(node, body.opset_imports.get(node.domain, 1))
                note(f"this form of {node.domain or 'ai.onnx'}::{node.op_type}", needed, node_name(node))
    return [f"{reason}{node}" for reason, node in reasons.items()]


_IR_VERSIONS: Final = {
    10: (ir.DataType.INT4, ir.DataType.UINT4),
    9: (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ),
    11: (ir.DataType.FLOAT4E2M1,),
    12: (ir.DataType.FLOAT8E8M0,),
    13: (ir.DataType.INT2, ir.DataType.UINT2),
}
"""The IR version that brought element types; https://github.com/onnx/onnx/blob/main/onnx/onnx.in.proto."""

_FUNCTIONS: Final = 8
"""The IR version that brought local functions."""


def needed_ir_version(model: ir.Model, token: CancellationToken = NEVER) -> int:
    """The IR version that a model's opsets, element types and functions need, whatever it says.

    Args:
        model: The model.
        token: Cancellation token.
    """
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    opsets = [onnx.helper.make_opsetid("", body.opset_imports[""]) for body in bodies if "" in body.opset_imports]
    version = onnx.helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    if model.functions:
        version = max(version, _FUNCTIONS)
    of_type = {dtype: least for least, dtypes in _IR_VERSIONS.items() for dtype in dtypes}
    for graph in scope.graphs(model, token):
        values = chain(graph.inputs, graph.initializers.values(), *(node.outputs for node in graph))
        version = max(version, *(of_type.get(value.dtype, 0) for value in values if value.dtype is not None), 0)
    return version


def lower_ir_version(model: ir.Model, release: Release, token: CancellationToken = NEVER) -> None:
    """Give a model that a release does not read the IR version that it needs itself, if that is an earlier one.

    It stays one in which nodes have metadata, if the release reads such.

    Args:
        model: The model, which changes.
        release: The release.
        token: Cancellation token.
    """
    newest = newest_ir(release)
    if model.ir_version > newest:
        needed = max(needed_ir_version(model, token), min(newest, METADATA_FROM_IR))
        model.ir_version = min(model.ir_version, needed)


_is_official = functools.cache(kernels.is_official)


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
