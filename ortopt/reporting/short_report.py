"""The report that a run prints by default: a screenful at most, whatever the model; `long_report` has the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from ortopt.analysis.blocks import FAMILIES
from ortopt.reporting import half_precision
from ortopt.reporting.interface import changes
from ortopt.reporting.long_report import (
    assumption,
    because,
    is_not_run_there,
    is_quantization_error,
    not_done,
    some,
    worst_error,
)
from ortopt.reporting.report import of_runtimes, size, spread_text
from ortopt.reporting.tables import Style, broken
from ortopt.reporting.tuning import tuning_lines
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from rich.console import Console

MAX_LINES: Final = 24
"""Lines of the report, with the warnings above it."""

PIPE_WIDTH: Final = 80
"""Columns of output that is no terminal."""

_MOST_COLUMNS: Final = 100
_LABEL: Final = 10
"""Columns of a row's label, and of the space below it."""

_SPARED: Final = ("fewer", "fused", "tuned", "numbers", "left")
"""The rows that are left out of too long a screen, in this order."""

_WARNING_LINES: Final = 6
"""Lines that warnings have in any case, if they need them."""

_ROW_TEXT: Final = 140
"""Characters of a row, about; clauses beyond that are left out and counted, but not the first ones (`Row.kept`)."""

_DONE: Final = {
    "elimination": "eliminated",
    "sharing": "shared with equal ones",
    "folding": "computed ahead",
    "fusion": "fused",
    "merging": "merged",
}
"""By the last word of passes' names, what became of nodes that are gone."""


class Row(Struct, frozen=True):
    """One thing that a report says.

    Attributes:
        label: What it is about.
        clauses: What there is to say of it, the most important first.
        style: The style of its text.
        kept: The clauses that are shown however long they are.
    """

    label: str
    clauses: tuple[str, ...]
    style: str = Style.PLAIN
    kept: int = 1


class Screen(Struct, frozen=True):
    """What is shown.

    Attributes:
        rows: Lines of a label and a text, with the style of the text.
        hint: What is shown below them: how to see more.
    """

    rows: tuple[tuple[str, str, str], ...]
    hint: tuple[str, ...]

    def __len__(self) -> int:
        """How many lines there are, with the empty one above the hint."""
        return len(self.rows) + 1 + len(self.hint)

    def show(self, out: Console) -> None:
        """Print it.

        Args:
            out: The console to print to.
        """
        from rich.text import Text

        for label, text, style in self.rows:
            out.print(Text.assemble((label.ljust(_LABEL), Style.STRONG), (text, style)), soft_wrap=True)
        out.print()
        for line in self.hint:
            out.print(Text(line), soft_wrap=True)


def width_of(out: Console) -> int:
    """The columns that a report takes on a console.

    Args:
        out: The console.
    """
    return min(out.width, _MOST_COLUMNS) if out.is_terminal else PIPE_WIDTH


def screen(data: Mapping[str, Any], width: int = PIPE_WIDTH, above: int = 0) -> Screen:
    """What is shown of a run.

    Args:
        data: From `ortopt.reporting.report.as_dict`, with the fields of `ortopt.reporting.tuning`, or without.
        width: The columns that there are.
        above: Lines that stand above it, and count as its own.
    """
    rows, omitted = list(_rows(data)), 0
    room = MAX_LINES - above - 1 - len(_hint(len(rows), width))
    while (longest := _too_long(rows, width, room)) is not None:
        rows[longest] = structs.replace(rows[longest], clauses=rows[longest].clauses[:-1])
        omitted += 1
    for label in _SPARED:
        if sum(len(_lines(row, width)) for row in rows) > room:
            omitted += sum(len(row.clauses) for row in rows if row.label == label)
            rows = [row for row in rows if row.label != label]
    lines = [(label, text, row.style) for row in rows for label, text in _lines(row, width)]
    return Screen(tuple(lines), _hint(omitted, width))


def _hint(omitted: int, width: int) -> tuple[str, ...]:
    more = f"{omitted} more of these, passes, ops" if omitted else "all passes and ops"
    return tuple(broken(f"-v: {more}; --html FILE: a page; --profile: time by op", width))


def _too_long(rows: Sequence[Row], width: int, room: int) -> int | None:
    """The row that loses a clause: one that is longer than a row may be, or the longest one of too long a screen."""
    heights = [len(_lines(row, width)) for row in rows]
    shortened = [number for number, row in enumerate(rows) if len(row.clauses) > row.kept]
    if not shortened:
        return None
    longest = max(shortened, key=lambda number: (heights[number], number))
    most = -(-_ROW_TEXT // _columns(width))
    return longest if heights[longest] > most or sum(heights) > room else None


def _columns(width: int) -> int:
    """The columns of the texts of rows."""
    return max(width - _LABEL, _LABEL)


def _lines(row: Row, width: int) -> list[tuple[str, str]]:
    """A row as lines of a label and a text."""
    texts = broken("; ".join(row.clauses), _columns(width))
    return [(row.label if number == 0 else "", text) for number, text in enumerate(texts)]


def with_warnings(
    data: Mapping[str, Any], messages: Sequence[str], printed: Sequence[str], out: Console
) -> tuple[Screen, list[str]]:
    """What is shown of a run, and of the warnings above it, so that both are no longer than a screen.

    Args:
        data: As for `screen`.
        messages: What is to be printed for each warning.
        printed: What has been printed for others.
        out: The console to print to.

    Returns:
        The screen, and what to print above it.
    """
    width = width_of(out)
    before = sum(len(broken(message, width)) for message in printed)
    wanted = sum(len(broken(message, width)) for message in messages)
    shown = screen(data, width, before + min(wanted, _WARNING_LINES))
    return shown, warnings_above(messages, width, max(MAX_LINES - before - len(shown), 2))


def warnings_above(messages: Sequence[str], width: int, room: int) -> list[str]:
    """The warnings that have room above a screen, the first ones whole, and how many more there are.

    Args:
        messages: What is to be printed for each of them.
        width: The columns that there are.
        room: The lines that there are, at least 2.

    Returns:
        What to print; no longer than the lines that there are, of which the last may say how many are left out. Only a
        first message that is longer than that loses its end, between two words.
    """
    heights = [len(broken(message, width)) for message in messages]
    if sum(heights) <= room:
        return list(messages)
    fitting = 0
    while fitting < len(messages) and sum(heights[: fitting + 1]) < room:
        fitting += 1
    shown = list(messages[:fitting]) or [" ".join(broken(messages[0], width, lines=room - 1))]
    more = len(messages) - len(shown)
    return [*shown, f"and {more} more {'warnings' if more > 1 else 'warning'}: -v"] if more else shown


# -- what there is to say ---------------------------------------------------------------------------------------------


def _rows(data: Mapping[str, Any]) -> Iterator[Row]:
    """What there is to say, a row each."""
    yield _sizes("nodes", data["nodes"], str, "fewer")
    if None in data["file_bytes"].values():
        yield _sizes("constants", data["constant_bytes"], size, "less")
    else:
        yield _sizes("file", data["file_bytes"], size, "less")
    if data["larger"]:
        yield Row("larger", tuple(data["larger"]), Style.WORSE, 2)
    yield _verified(data)
    yield Row("needs", tuple(_needs(data)))
    if assumed := assumption(data):
        yield Row("assumes", (assumed,))
    if data["interface"]:
        yield Row("interface", tuple(changes(data["interface"])))
    if data["numerics"]:
        yield Row("numbers", tuple(_numbers(data["numerics"])))
    if data["half_precision"]:
        yield Row(data["half_precision"]["dtype"], tuple(half_precision.in_short(data["half_precision"])))
    if tuned := tuple(_tuned(data.get("tuning"))):
        yield Row("tuned", tuned, kept=2)
    for label, clauses in (("fused", _fused(data)), ("fewer", _fewer(data)), ("left", _left(data))):
        if told := tuple(clauses):
            yield Row(label, told)
    yield _written(data)


def _sizes(label: str, counts: Mapping[str, int], shown: Any, less: str) -> Row:
    before, after = counts["before"], counts["after"]
    text = f"{shown(before)} → {shown(after)}"
    if before == after or not before:
        return Row(label, (text,))
    if after >= 10 * before:
        return Row(
            label, (f"{text} ({after / before:.0f} times as {'many' if shown is str else 'much'})",), Style.WORSE
        )
    percent = round(100 * abs(after - before) / before)
    share = f"{percent} %" if percent else "under 1 %"
    word, style = (less, Style.GOOD) if after < before else ("more", Style.WORSE)
    return Row(label, (f"{text} ({share} {word})",), style)


def _verified(data: Mapping[str, Any]) -> Row:
    outcome = data["verification"]
    if outcome is None:
        return Row("verified", ("no, that was not asked for",), Style.WORSE)
    if not data["verified"]:
        reason = one_line(outcome["reason"])
        return Row("verified", (f"no: {outcome['status']}{f', {reason}' if reason else ''}",), Style.WORSE)
    wanted = [] if data["options"] is None else data["options"]["providers"]
    absent = [f"not {name}" for name in wanted if name not in data["verified_on"]]
    names = ", ".join(name.removesuffix("ExecutionProvider") for name in (*data["verified_on"], *absent))
    sets = f"{outcome['input_sets']} {'sets' if outcome['input_sets'] != 1 else 'set'} of inputs"
    deployed = ", with and without its own optimizations" if outcome["as_deployed"] else ""
    others = "".join(f", and by {name}" for name in data["verified_with"][1:])
    clauses = [f"on {sets} by {data['verified_with'][0]} ({names}){deployed}{others}", _difference(outcome)]
    if outcome["not_as_deployed"]:
        clauses.append("not compared with its own optimizations")
    if count := len(data["repairs"]):
        clauses.append(f"{count} {'rewrites' if count > 1 else 'rewrite'} that made it differ left out")
    clauses += of_runtimes(outcome, agrees=False)
    if outcome["spread"]:
        clauses.append(spread_text(outcome["spread"]))
    return Row("verified", tuple(clauses), Style.GOOD, 2)


def _difference(outcome: Mapping[str, Any]) -> str:
    if outcome["random"]:
        return "outputs are random, so only their types and shapes were compared"
    if outcome["worst"] == 0 or not outcome["outputs"]:
        return "no difference"
    return f"{worst_error(outcome)}{', by steps of its own quantization' if is_quantization_error(outcome) else ''}"


def _needs(data: Mapping[str, Any]) -> Iterator[str]:
    requires, opset = data["requires"], data["opset"]
    first, original = requires["onnxruntime"], requires["original"]
    if first is None:
        yield f"a runtime that has {some(requires['ops'])}"
    else:
        yield f"ONNX Runtime {first} or newer, for {because(data)}"
        if requires["with_nothing"] is not None:
            yield f"{requires['with_nothing']} where a batch or a length may be 0"
        if requires["any_runtime"]:
            yield "or another runtime that has its opset"
        if is_not_run_there(data):
            yield f"{first} itself was not run (--verify-with)"
        if original is not None and original != first:
            yield f"the original: {original}"
        if unnamed := set(requires["ops"]) - set(requires["because"]):
            yield f"has {some(sorted(unnamed))}"
    if f"opset {opset['after']}" not in requires["because"] and opset["before"] != opset["after"]:
        yield f"opset {opset['after']}, raised from {opset['before']}"
    if there := data["runs_on"]:
        yield f"for {there['runtime']} (--target {there['target']})"


def _tuned(tuning: Mapping[str, Any] | None) -> Iterator[str]:
    """What tuning has found: first what came of it, and how much there was no time for."""
    lines = [line.removeprefix("tuned: ") for line in tuning_lines(tuning)]
    yield from (line for line in lines if line.startswith("measured"))
    if tuning is not None and tuning["unmeasured"]:
        yield f"{len(tuning['unmeasured'])} not measured, for lack of time (--tune-seconds)"
    yield from (line for line in lines if not line.startswith(("measured", "not measured")))


def _numbers(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    finite = [row["pass"] for row in rows if not row["error_bound"]]
    if finite:
        yield f"a NaN or an infinity may spread to neighbours: {some(finite)} (--no-finite-math)"
    for row in rows:
        if row["error_bound"]:
            yield f"{row['pass']}: {row['error_bound']}"


_MOST_OPS: Final = 3
"""How many ops, and passes that fused, a row names."""

_FUSIONS: Final = {"attention": "attention", "rotary": "rotary", "normalization": "norm"}
"""By family of blocks, what the names of the passes have that make them one op."""


def _fused(data: Mapping[str, Any]) -> Iterator[str]:
    """The blocks that have become one op, and what else was fused most."""
    counted = []
    for name, counts in data["blocks"].items():
        if (count := counts["after"]["fused"] - counts["before"]["fused"]) > 0:
            counted.append(_FUSIONS[name])
            title = FAMILIES[name].title
            yield f"{count} {title if count > 1 else title.removesuffix('s')}"
    others = [
        total
        for total in data["passes"]
        if total["pass"].endswith("_fusion") and total["nodes"] < 0 and not any(w in total["pass"] for w in counted)
    ]
    for total in sorted(others, key=lambda total: (total["nodes"], total["pass"]))[:_MOST_OPS]:
        yield f"{total['rewrites']} by {total['pass']}"


def _fewer(data: Mapping[str, Any]) -> Iterator[str]:
    """What became of the nodes that are gone."""
    gone: Counter[str] = Counter()
    for total in data["passes"]:
        gone[_DONE.get(total["pass"].rpartition("_")[2], "by other passes")] -= total["nodes"]
    parts = [f"{count} {what}" for what, count in gone.most_common() if count > 0 and what != "by other passes"]
    if parts:
        yield f"nodes: {', '.join(parts)}"


def _left(data: Mapping[str, Any]) -> Iterator[str]:
    """What is left, and why: first what somebody can do about."""
    if undone := not_done(data):
        yield undone
    for failure in data["failures"]:
        yield f"without {failure['pass']}, which failed"
    spelled_out = {name: counts["after"] for name, counts in data["blocks"].items() if counts["after"]["spelled_out"]}
    for name, count in spelled_out.items():
        number, of = count["spelled_out"], sum(count.values())
        yield f"{number} of {of} {FAMILIES[name].title} in several ops (ortopt explain MODEL {name})"
    if refused := data["too_large"]:
        nbytes, count = (sum(one[what] for one in refused) for what in ("bytes", "count"))
        yield f"{count} of {refused[0]['pass']}{' and others' * (len(refused) > 1)}: {size(nbytes)} more (--max-growth)"
    if data["replaceable_weights"]:
        yield f"{data['replaceable_weights']} weights that a caller may replace (--freeze-initializers)"
    reasons = Counter(one_line(node["why"]) for node in data["shape_arithmetic"])
    if reasons:
        why = min(reasons, key=lambda why: (-reasons[why], why))
        count = reasons.total()
        yield f"{count} {'node computes' if count == 1 else 'nodes compute'} shapes ({why})"
    slower: Counter[str] = Counter()
    for row in data["costs"]["declined"]:
        if row["verdict"] == "loses":
            slower[row["op"]] += row["count"]
    for op, count in slower.most_common(1):
        yield f"{count} {one_line(op)} left out: slower"
    ops = [(counts["after"], one_line(op)) for op, counts in data["nodes"]["by_op"].items() if counts["after"]]
    most = sorted(ops, key=lambda row: (-row[0], row[1]))[:_MOST_OPS]
    if most:
        named = ", ".join(f"{count} {op}" for count, op in most)
        yield named if len(most) == len(ops) else f"most are {named}"


def _written(data: Mapping[str, Any]) -> Row:
    output = data["output"]
    if output is None:
        return Row("written", (f"nothing{': ' + one_line(data['error']) if data['error'] else ''}",), Style.WORSE)
    beside = f" with {one_line(output['data'])}" if output["data"] else ""
    stays = f", {size(output['reused'])} stay in the original's files" if output["reused"] else ""
    return Row("written", (f"{one_line(output['path'] or 'stdout')}{beside}{stays}",))
