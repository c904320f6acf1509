"""What a session, or the environment of its process, can make faster and a file cannot: each lever, and its Python."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_GLIBC_WITH_HUGE_PAGES: Final = (2, 35)

LARGE_WEIGHTS: Final = 8 << 20
"""Bytes of a model from which its weights take several huge pages, and no cache of a core holds them."""

_COPIED_PER_SECOND: Final = 5e9
_SHARE_OF_A_CALL: Final = 0.01


@dataclass(frozen=True, slots=True)
class Lever:
    """A setting of a session or of its process.

    Attributes:
        name: What it is, in words.
        config: Entries of the session's configuration.
        attributes: Attributes of ``onnxruntime.SessionOptions``.
        environment: Variables that must be set before the process starts.
        binding: Whether results stay in ONNX Runtime's memory instead of being copied to numpy.
        by_clock: Whether it is about several threads: then the clock says what a call takes, not the thread's own time.
        note: What to know of it, for a comment beside its line.
    """

    name: str
    config: tuple[tuple[str, str], ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    binding: bool = False
    by_clock: bool = False
    note: str = ""

    def as_order(self) -> dict[str, Any]:
        """What the process that measures is told."""
        return {"config": list(self.config), "attributes": list(self.attributes), "binding": self.binding}


NONE: Final = Lever("none")
"""Nothing is set."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a model, to tell which levers can matter.

    Attributes:
        underflows: Whether a call computes numbers below the smallest normal one; None where that is not known.
        output_bytes: Bytes of its results.
        seconds: Seconds of a call.
        model_bytes: Bytes of its file and weights.
        has_open_sizes: Whether inputs have open sizes, for each of which memory is planned anew.
        cores: Cores that the process may use.
    """

    underflows: bool | None
    output_bytes: int
    seconds: float
    model_bytes: int
    has_open_sizes: bool
    cores: int


def together(levers: Iterable[Lever]) -> Lever:
    """All of some levers as one."""
    every = tuple(levers)
    return Lever(
        ", ".join(lever.name for lever in every) or NONE.name,
        tuple(entry for lever in every for entry in lever.config),
        tuple(entry for lever in every for entry in lever.attributes),
        tuple(entry for lever in every for entry in lever.environment),
        any(lever.binding for lever in every),
        any(lever.by_clock for lever in every),
    )


def worth_trying(facts: RunFacts, *, threads: int | None) -> tuple[list[Lever], list[str]]:
    """The levers that can matter to a model, those that may gain most first, and why others are not tried.

    Args:
        facts: What is known of it.
        threads: Threads that the caller has asked for; None where the number is a lever, too.
    """
    found = list(_candidates(facts, threads))
    return [lever for lever, reason in found if not reason], [
        f"{lever.name}: {reason}" for lever, reason in found if reason
    ]


def _candidates(facts: RunFacts, threads: int | None) -> Iterator[tuple[Lever, str]]:
    large = "" if facts.model_bytes >= LARGE_WEIGHTS else "the weights are small"
    yield (
        Lever(
            "denormals as zero",
            (("session.set_denormal_as_zero", "1"),),
            note="the first session of a process decides, for the thread that makes it and for its pool",
        ),
        "no call computes any" if facts.underflows is False else "",
    )
    yield (
        Lever("huge pages for malloc", environment=(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),)),
        _no_huge_pages() or large,
    )
    copied = facts.output_bytes / _COPIED_PER_SECOND
    few = "" if copied >= _SHARE_OF_A_CALL * facts.seconds else "copying the results takes less than 1 % of a call"
    yield Lever("results stay bound", binding=True, note="feed what comes back by bind_ortvalue_input"), few
    for number in _numbers_of_threads(facts.cores) if threads is None else ():
        name = "one thread" if number == 1 else f"{number} threads"
        yield Lever(name, attributes=(("intra_op_num_threads", number),), by_clock=True), ""
    yield (
        Lever("no spinning", (("session.intra_op.allow_spinning", "0"),), by_clock=True),
        "there is one thread" if threads == 1 or facts.cores == 1 else "",
    )
    yield (
        Lever("no memory pattern", attributes=(("enable_mem_pattern", False),)),
        "" if facts.has_open_sizes else "all sizes are fixed",
    )
    yield Lever("no arena", attributes=(("enable_cpu_mem_arena", False),)), large
    yield Lever("weights outside of the arena", (("session.use_device_allocator_for_initializers", "1"),)), large
    yield Lever("no prepacked weights", (("session.disable_prepacking", "1"),)), large


def _numbers_of_threads(cores: int) -> tuple[int, ...]:
    """One thread, and half of the cores; all of them are ONNX Runtime's default."""
    return tuple(dict.fromkeys(number for number in (1, cores // 2) if 0 < number < cores))


def _no_huge_pages() -> str:
    """Why malloc cannot ask for huge pages here; empty if it can."""
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name != "glibc" or numbers < _GLIBC_WITH_HUGE_PAGES:
        return "it needs glibc 2.35"
    try:
        mode = _HUGE_PAGES.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return "the system says nothing of them"
    return "the system has turned them off" if "[never]" in mode else ""


def python_lines(lever: Lever, each: Iterable[Lever], *, model: str, threads: int) -> list[str]:
    """The lines of Python, with the environment as comments, that set levers.

    Args:
        lever: All of them as one.
        each: The levers, for their notes.
        model: The model's path.
        threads: Threads within an op that all was measured with; 0 is ONNX Runtime's default.
    """
    notes = {entry: one.note for one in each for entry in one.config if one.note}
    lines = [f"# start the process with {name}={value}" for name, value in lever.environment]
    lines += ["import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    attributes = dict(lever.attributes)
    if threads and not lever.by_clock:
        attributes.setdefault("intra_op_num_threads", threads)
    lines += [f"options.{name} = {value!r}" for name, value in attributes.items()]
    for key, value in lever.config:
        note = notes.get((key, value))
        lines += [f"# {note}"] if note else []
        lines.append(f'options.add_session_config_entry("{key}", "{value}")')
    lines.append(f'session = ort.InferenceSession({model!r}, options, providers=["CPUExecutionProvider"])')
    if lever.binding:
        lines += [
            "binding = session.io_binding()",
            "for name, array in feeds.items():  # your inputs, by name",
            "    binding.bind_cpu_input(name, array)",
            "for output in session.get_outputs():",
            '    binding.bind_output(output.name, "cpu")',
            "session.run_with_iobinding(binding)",
            "results = binding.get_outputs()  # bind_ortvalue_input takes them for the next call",
        ]
    return lines
