"""How a session runs its groups: what the caller said, then the environment, then the defaults."""

from __future__ import annotations

import enum
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ortopt.errors import UsageError

_T = TypeVar("_T")

PREFIX: Final = "ORTOPT_"
DEFAULT_ENTRIES: Final = 64
DEFAULT_BYTES: Final = 1 << 30
DEFAULT_CUDA_GROUPS: Final = 32
DUMP_FOLDER: Final = Path("ortopt-dump")


class RunType(enum.Enum):
    """What executes a group.

    ``ort`` is ONNX Runtime as it comes, ``reference`` ONNX Runtime without optimization, ``host`` is
    ``onnx.reference``, and ``debug`` is ``ort`` with every group run by ``reference`` too and compared.
    """

    ORT = "ort"
    REFERENCE = "reference"
    HOST = "host"
    DEBUG = "debug"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What shapes a session, apart from the model and ONNX Runtime's own options.

    Attributes:
        run_type: What executes a group.
        rtol: For ``debug``: the error allowed relative to the expected number; None compares by dtype.
        atol: For ``debug``: the error allowed in absolute terms; None compares by dtype.
        dump_graph: Whether the model that is executed is written, and the plan.
        dump_groups: Whether each group is written as a model when it is compiled.
        dump_inputs_outputs: Whether what each group is given and gives is written, at each call.
        dump_folder: Where to.
        reproduces: Whether ``debug`` writes a group that differs, and its inputs, there.
        max_cuda_groups: How many groups run on CUDA at most.
    """

    run_type: RunType = RunType.ORT
    rtol: float | None = None
    atol: float | None = None
    dump_graph: bool = False
    dump_groups: bool = False
    dump_inputs_outputs: bool = False
    dump_folder: Path = DUMP_FOLDER
    reproduces: bool = False
    max_cuda_groups: int = DEFAULT_CUDA_GROUPS

    @property
    def observes_groups(self) -> bool:
        """Whether something must be done around every run of a group."""
        return self.run_type is RunType.DEBUG or self.dump_inputs_outputs


def read_settings(
    run_type: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    dump_folder: str | os.PathLike[str] | None = None,
) -> RunSettings:
    """Settings from arguments and, where an argument is None, from the environment.

    Raises:
        UsageError: A value makes no sense; the message names the variable.
    """
    graph, groups, values = (_flag(name) for name in ("DUMP_GRAPH", "DUMP_GROUPS", "DUMP_INPUTS_OUTPUTS"))
    return RunSettings(
        _run_type(run_type),
        _tolerance("rtol", rtol, "RELATIVE_TOLERANCE"),
        _tolerance("atol", atol, "ABSOLUTE_TOLERANCE"),
        graph,
        groups,
        values,
        DUMP_FOLDER if dump_folder is None else Path(dump_folder),
        dump_folder is not None or graph or groups or values,
        _count("MAX_CUDA_GROUPS", DEFAULT_CUDA_GROUPS),
    )


def _run_type(argument: str | None) -> RunType:
    name, text = _given("run_type", argument, "RUN_TYPE")
    if text is None:
        return RunType.ORT
    try:
        return RunType(text)
    except ValueError:
        choices = ", ".join(run_type.value for run_type in RunType)
        raise UsageError(f"{name} must be one of {choices}, not {text!r}") from None


def _tolerance(argument: str, value: float | None, variable: str) -> float | None:
    name, text = _given(argument, value, variable)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number < math.inf):
        raise UsageError(f"{name} must be a number that is not negative, not {text!r}")
    return number


def _flag(variable: str) -> bool:
    name, text = _given("", None, variable)
    if text not in {None, "0", "1"}:
        raise UsageError(f"{name} must be 0 or 1, not {text!r}")
    return text == "1"


def _count(variable: str, default: int) -> int:
    name, text = _given("", None, variable)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise UsageError(f"{name} must be a whole number from 1 on, not {text!r}")
    return int(text)


def _given(argument: str, value: _T | None, variable: str) -> tuple[str, _T | str | None]:
    """What is said by an argument, or else by an environment variable; and the name of that."""
    if value is not None:
        return argument, value
    return f"the environment variable {PREFIX}{variable}", os.environ.get(PREFIX + variable)
