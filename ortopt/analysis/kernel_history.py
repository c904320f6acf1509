"""Since which release of ONNX Runtime a node is computed right: by its op's form, its types, and what was measured.

Three things decide: the schemas of ONNX Runtime's own ops (attributes, numbers of inputs and outputs), the CPU's
kernels, and forms that kernels of older releases refuse or compute wrongly. The first two are read from the wheels of
all releases since 1.17 (``python -m tools.refresh_kernels --history``). The third, `FACTS`, are conditions, each with a
probe that was run on all of them (``python -m tools.probe_kernels``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import kernels
from ortopt.graph.facts import dims_of
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.graph.symbolic import at_least
from ortopt.semantics.domains import MICROSOFT

Release: TypeAlias = tuple[int, int]
"""Major and minor version: patches read what their release reads."""

ANY: Final[Release] = (1, 0)
"""As old as one likes: nothing is known of releases before the oldest that was read."""

_FOLDER: Final = Path(__file__).parent / "data"
MASKED_ROWS: Final = "0 for what reads no key"
"""Attention of ai.onnx gives 0, and not NaN, where all keys are masked by -inf."""

ROOT_OF_INFINITY: Final = "a Sqrt of an infinity, where there was another op"
"""Sqrt gives an infinity there, and not NaN. Of a model's own Sqrt nothing is said: it has run with its kernel."""

NO_QUERY: Final = "attention without any query"
"""MultiHeadAttention gives a result without elements for no sequence, and for no query, and does not end the process.

Of a model's own nothing is said: its author knows whether there may be none.
"""

_HALF: Final = ("tensor(float16)", "tensor(float)")


class Fact(Struct, frozen=True):
    """A form that kernels of older releases refuse or compute wrongly.

    Attributes:
        name: What is wanted, as a refusal says it.
        ops: Domains and types of the ops.
        holds: Whether a node has the form, or may have it; called with the opset of its domain.
        probe: A model in ONNX's textual form with one such node, from `x` and other inputs to `y`.
        reference: The same spelled out, in double.
        of_nothing: Whether it matters only where a batch or a length is 0.
        as_loaded: Whether it is ONNX Runtime's own rewrites that go wrong, when it loads the model.
    """

    name: str
    ops: frozenset[tuple[str, str]]
    holds: Callable[[ir.Node, int], bool]
    probe: str
    reference: str
    of_nothing: bool = False
    as_loaded: bool = False


def first_release(node: ir.Node, opset: int, *, on_cpu: bool = True) -> Release:
    """The first release from which on every one computes a node right; `ANY` where none is known that does not.

    What matters for inputs without elements only is left out (see `first_release_of_nothing`).

    Args:
        node: A node of a graph.
        opset: The opset of its domain there.
        on_cpu: Whether the CPU's kernels matter; of those of other providers it is not known when they came.
    """
    release = max(of_schema(node), _of_kernel(node, opset) if on_cpu else ANY)
    return max(release, _of_facts(node, opset, of_nothing=False))


def first_release_of_nothing(node: ir.Node, opset: int) -> Release:
    """The first release that computes a node of inputs without elements right; `ANY` if each does that does others.

    Args:
        node: A node of a graph.
        opset: The opset of its domain there.
    """
    return _of_facts(node, opset, of_nothing=True)


def _of_facts(node: ir.Node, opset: int, *, of_nothing: bool) -> Release:
    facts = [fact for fact in _facts_of(node.domain, node.op_type) if fact.of_nothing is of_nothing]
    return max((measured(fact.name) for fact in facts if fact.holds(node, opset)), default=ANY)


def is_listed(node: ir.Node) -> bool:
    """Whether releases differ in an op at all."""
    return (node.domain, node.op_type) in _listed()


@functools.cache
def _listed() -> frozenset[tuple[str, str]]:
    return frozenset({*_schemas(), *_kernels()}.union(*(fact.ops for fact in FACTS)))


def of_op(domain: str, op: str) -> Release:
    """The first release that knows an op of ONNX Runtime's own.

    Args:
        domain: Its domain.
        op: Its type.
    """
    return _since(_schemas().get((domain, op), ()), lambda _: True)


def of_schema(node: ir.Node) -> Release:
    """The first release in which an op of ONNX Runtime's own has the attributes, inputs and outputs of a node."""
    entries = _schemas().get((node.domain, node.op_type), ())
    return _since(entries, lambda rows: any(_fits(row, node) for row in rows)) if entries else ANY


def _fits(row: Sequence[Any], node: ir.Node) -> bool:
    _, (least, most), (least_given, most_given), attributes = row
    given = len(node.outputs)
    return (
        least <= len(node.inputs) <= most
        and least_given <= given <= most_given
        and all(name in attributes for name in node.attributes)
    )


def _of_kernel(node: ir.Node, opset: int) -> Release:
    """The first release in which the CPU has a kernel for a node's types; halves may be computed as floats there."""
    op = node.domain, node.op_type
    if op not in _kernels() or kernels.is_function(*op, opset):
        return ANY
    key = kernels.summary(node, opset)
    if key not in _KNOWN:
        _KNOWN[key] = _of_types(*op, opset, kernels.signature(node))
    return _KNOWN[key]


_KNOWN: Final[dict[tuple[Any, ...], Release]] = {}
"""By what nodes are (`kernels.summary`), the first release in which the CPU has a kernel for them."""


def _of_types(domain: str, op: str, opset: int, types: kernels.Signature) -> Release:
    entries, schema = _kernels()[domain, op], kernels.schema(domain, op, opset)
    if schema is None:
        return ANY
    single = types.replaced(*_HALF)

    def takes(some: kernels.Signature, rules: Sequence[kernels.Rule]) -> bool:
        return any(rule.holds_at(schema.since) and kernels.accepts(rule, schema, some) for rule in rules)

    newest = entries[-1][1]
    if newest is None or not takes(single, newest):
        return ANY  # a function, or nothing that the CPU runs
    return min(_since(entries, functools.partial(takes, some)) for some in {types, single})


def _since(entries: Sequence[tuple[Release, Any]], fits: Callable[[Any], bool]) -> Release:
    """The first release of those up to the newest, in a row, of which the entry fits."""
    first: Release | None = None
    for release, rows in reversed(entries):
        if rows is None or not fits(rows):
            break
        first = release
    if first is None:  # the newest has none
        return (_releases()[-1][0], _releases()[-1][1] + 1) if entries else ANY
    return ANY if first == _releases()[0] else first


def measured(name: str) -> Release:
    """The first release from which on the probe of a fact was right.

    Args:
        name: The name of a `Fact`.
    """
    return _release(_data("kernel-facts.json")["facts"][name]["right_since"])


@functools.cache
def _facts_of(domain: str, op: str) -> tuple[Fact, ...]:
    return tuple(fact for fact in FACTS if (domain, op) in fact.ops)


def _has_broadcast_bias(node: ir.Node, _: int) -> bool:
    """Whether the scores' bias may have one plane for several sequences or heads."""
    bias = node.inputs[5] if len(node.inputs) > 5 else None
    if bias is None:
        return False
    query = node.inputs[0]
    if query is None:
        return True
    shape, given = dims_of(bias), dims_of(query)
    heads = node.attributes.get("num_heads")
    if shape is None or given is None or len(shape) != 4 or heads is None:
        return True
    return shape[0] != given[0] or shape[1] != heads.as_int()


def _has_mask_for_shared_heads(node: ir.Node, _: int) -> bool:
    """Whether a mask has planes for heads of which several read the same keys."""
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    if mask is None:
        return False
    shape = dims_of(mask)
    has_planes = shape is None or (len(shape) > 2 and shape[-3] != 1)
    return has_planes and _shares_heads(node)


def _shares_heads(node: ir.Node) -> bool:
    heads, read = (node.attributes.get(name) for name in ("q_num_heads", "kv_num_heads"))
    if heads is not None and read is not None:
        return heads.as_int() != read.as_int()
    shapes = [None if value is None else dims_of(value) for value in node.inputs[:2]]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return True
    query, key = (shape for shape in shapes if shape is not None)
    return query[1] != key[1]


def _has_eight_bits(node: ir.Node, _: int) -> bool:
    bits = node.attributes.get("bits")
    return bits is not None and bits.as_int() == 8


def _is_of_half(node: ir.Node, _: int) -> bool:
    return node.inputs[0] is None or node.inputs[0].dtype in (None, ir.DataType.FLOAT16)


def _counts_padding(node: ir.Node, opset: int) -> bool:
    """Whether a mean is over padding, too, in one of the opsets of which kernels took it for less."""
    counts = node.attributes.get("count_include_pad")
    return opset >= 19 and counts is not None and counts.as_int() == 1


def _sums_nothing(node: ir.Node, _: int) -> bool:
    """Whether a Gemm's sums may be of no products."""
    shape = None if node.inputs[1] is None else dims_of(node.inputs[1])
    return shape is None or not all(at_least(dim, 1) for dim in shape)


def _adds_in_blocks(node: ir.Node, _: int) -> bool:
    """Whether a convolution may add an image in ONNX Runtime's blocked layout, where it wants a bias, too."""
    bias, summand = (*node.inputs[2:4], None, None)[:2]
    return bias is not None and summand is not None


def _says(node: ir.Node, name: str) -> bool:
    """Whether the pass that made a node has said that it needs a fact."""
    return node.metadata_props.get(NEEDS_KEY) == name


_WEIGHTS: Final = ",".join(str((7 * number % 11 - 5) / 8) for number in range(256))
_ZEROS: Final = ",".join("0" * 16)

FACTS: Final[tuple[Fact, ...]] = (
    Fact(
        "a bias that is shared among heads or sequences",
        frozenset({(MICROSOFT, "Attention"), (MICROSOFT, "MultiHeadAttention")}),
        _has_broadcast_bias,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[2,3,4] x, float[2,3,4] k, float[2,3,4] v, float[2,1,3,3] b) => (float[2,3,4] y) {
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, k, v, "", "", b) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[2,3,4] x, double[2,3,4] k, double[2,3,4] v, double[2,1,3,3] b) => (double[2,3,4] y)
            <int64[4] heads = {2, 3, 2, 2}, int64[3] whole = {2, 3, 4}, double root = {1.4142135623730951}> {
            xh = Reshape (x, heads) kh = Reshape (k, heads) vh = Reshape (v, heads)
            xt = Transpose <perm = [0, 2, 1, 3]> (xh) kt = Transpose <perm = [0, 2, 3, 1]> (kh)
            vt = Transpose <perm = [0, 2, 1, 3]> (vh) raw = MatMul (xt, kt) scaled = Div (raw, root)
            scores = Add (scaled, b) p = Softmax <axis = -1> (scores) h = MatMul (p, vt)
            t = Transpose <perm = [0, 2, 1, 3]> (h) y = Reshape (t, whole) }""",
    ),
    Fact(
        "a mask for each of several heads that share keys",
        frozenset({("", "Attention")}),
        _has_mask_for_shared_heads,
        """<ir_version: 10, opset_import: ["" : 23]>
        main (float[1,2,3,4] x, float[1,1,3,4] k, float[1,1,3,4] v, float[1,2,3,3] b) => (float[1,2,3,4] y) {
            y = Attention (x, k, v, b) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[1,2,3,4] x, double[1,1,3,4] k, double[1,1,3,4] v, double[1,2,3,3] b) => (double[1,2,3,4] y)
            <double root = {2}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k) raw = MatMul (x, kt) scaled = Div (raw, root)
            scores = Add (scaled, b) p = Softmax <axis = -1> (scores) y = MatMul (p, v) }""",
    ),
    Fact(
        "Attention in half precision",
        frozenset({("", "Attention")}),
        _is_of_half,
        """<ir_version: 10, opset_import: ["" : 23]>
        main (float16[2,3,32] x, float16[2,3,16] k, float16[2,3,16] v) => (float16[2,3,32] y) {
            y = Attention <q_num_heads = 4, kv_num_heads = 2> (x, k, v) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[2,3,32] x, double[2,3,16] k, double[2,3,16] v) => (double[2,3,32] y)
            <int64[5] own = {2, 3, 2, 2, 8}, int64[5] shared = {2, 3, 2, 1, 8}, int64[3] whole = {2, 3, 32},
             double root = {2.8284271247461903}> {
            xh = Reshape (x, own) kh = Reshape (k, shared) vh = Reshape (v, shared)
            xt = Transpose <perm = [0, 2, 3, 1, 4]> (xh) kt = Transpose <perm = [0, 2, 3, 4, 1]> (kh)
            vt = Transpose <perm = [0, 2, 3, 1, 4]> (vh) raw = MatMul (xt, kt) scores = Div (raw, root)
            p = Softmax <axis = -1> (scores) h = MatMul (p, vt)
            t = Transpose <perm = [0, 3, 1, 2, 4]> (h) y = Reshape (t, whole) }""",
    ),
    Fact(
        "an AveragePool that counts padding",
        frozenset({("", "AveragePool")}),
        _counts_padding,
        """<ir_version: 9, opset_import: ["" : 19]>
        main (float[1,2,4,4] x) => (float[1,2,4,4] y) {
            y = AveragePool <kernel_shape = [3, 1], pads = [1, 0, 1, 0], count_include_pad = 1> (x) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[1,2,4,4] x) => (double[1,2,4,4] y)
            <int64[8] around = {0, 0, 1, 0, 0, 0, 1, 0}, int64 i = {0}, double three = {3}, int64[1] axis = {2},
             int64[1] one = {1}, int64[1] two = {2}, int64[1] zero = {0}, int64[1] four = {4}, int64[1] five = {5},
             int64[1] six = {6}> {
            p = Pad (x, around) a = Slice (p, zero, four, axis) b = Slice (p, one, five, axis)
            c = Slice (p, two, six, axis) s = Sum (a, b, c) y = Div (s, three) }""",
    ),
    Fact(
        "a Gemm of no products",
        frozenset({("", "Gemm")}),
        _sums_nothing,
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2,0] x, float[3] b) => (float[2,3] y) <float[0,3] w = {}> { y = Gemm (x, w, b) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[2,0] x, double[3] b) => (double[2,3] y) <int64[2] whole = {2, 3}> { y = Expand (b, whole) }""",
    ),
    Fact(
        "a bias of the skip",
        frozenset({(MICROSOFT, "SkipSimplifiedLayerNormalization")}),
        lambda node, _: len(node.inputs) > 3 and node.inputs[3] is not None,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[2,3,4] x, float[2,3,4] s, float[4] g, float[4] b) => (float[2,3,4] y) {
            y = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> (x, s, g, b) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[2,3,4] x, double[2,3,4] s, double[4] g, double[4] b) => (double[2,3,4] y)
            <double e = {0.001}> {
            t = Add (x, s) u = Add (t, b) q = Mul (u, u) m = ReduceMean <axes = [-1]> (q) w = Add (m, e)
            r = Sqrt (w) d = Div (u, r) y = Mul (d, g) }""",
    ),
    Fact(
        "weights of eight bits",
        frozenset({(MICROSOFT, "MatMulNBits")}),
        _has_eight_bits,
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[5,16] x) => (float[5,1] y)
            <uint8[1,1,16] w = {128, 129, 130, 131, 132, 133, 134, 135, 120, 121, 122, 123, 124, 125, 126, 127},
             float[1] s = {0.5}> {
            y = com.microsoft.MatMulNBits <K = 16, N = 1, bits = 8, block_size = 16> (x, w, s) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[5,16] x) => (double[5,1] y)
            <double[16,1] w = {0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, -4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5}> {
            y = MatMul (x, w) }""",
    ),
    Fact(
        MASKED_ROWS,
        frozenset({("", "Attention")}),
        lambda node, _: _says(node, MASKED_ROWS),  # a guard has gone, which the form does not show
        """<ir_version: 10, opset_import: ["" : 23]>
        main (float[1,2,3,4] x, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y)
            <float[1,1,3,3] b = {0, 0, 0, -inf, -inf, -inf, 0, 0, 0}> {
            y = Attention (x, k, v, b) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[1,2,3,4] x, double[1,2,3,4] k, double[1,2,3,4] v) => (double[1,2,3,4] y)
            <double[1,1,3,1] kept = {1, 0, 1}, double root = {2}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k) raw = MatMul (x, kt) scores = Div (raw, root)
            p = Softmax <axis = -1> (scores) h = MatMul (p, v) y = Mul (h, kept) }""",
    ),
    Fact(
        NO_QUERY,
        frozenset({(MICROSOFT, "MultiHeadAttention")}),
        lambda node, _: _says(node, NO_QUERY),
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[0,3,4] x, float[0,3,4] k, float[0,3,4] v) => (float[0,3,4] y) {
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, k, v) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[0,3,4] x, double[0,3,4] k, double[0,3,4] v) => (double[0,3,4] y) { y = Identity (x) }""",
        of_nothing=True,
    ),
    Fact(
        "what a FusedConv adds, in blocks of channels",
        frozenset({(MICROSOFT, "FusedConv")}),
        _adds_in_blocks,
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        main (float[1,16,4,4] x) => (float[1,16,4,4] y)
            <float[16,16,1,1] w = {{{_WEIGHTS}}}, float[16] b = {{{_ZEROS}}}> {{
            c = Conv (x, w) y = com.microsoft.FusedConv <activation = "Relu"> (c, w, b, c) }}""",
        f"""<ir_version: 8, opset_import: ["" : 17]>
        main (double[1,16,4,4] x) => (double[1,16,4,4] y) <double[16,16,1,1] w = {{{_WEIGHTS}}}> {{
            c = Conv (x, w) d = Conv (c, w) s = Add (d, c) y = Relu (s) }}""",
        as_loaded=True,
    ),
    Fact(
        ROOT_OF_INFINITY,
        frozenset({("", "Sqrt")}),
        lambda node, _: _says(node, ROOT_OF_INFINITY),
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[2,16] x) => (float[2,16] y) <float infinite = {inf}, float one = {1}> {
            m = Add (x, infinite) r = Sqrt (m) z = Div (one, r) y = Add (x, z) }""",
        """<ir_version: 8, opset_import: ["" : 17]>
        main (double[2,16] x) => (double[2,16] y) { y = Identity (x) }""",
    ),
)
"""What was found by running results of all passes' tests on all releases."""


def _release(text: str) -> Release:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@functools.cache
def _releases() -> tuple[Release, ...]:
    return tuple(map(_release, _data("kernels-cpu-history.json")["releases"]))


@functools.cache
def _schemas() -> Mapping[tuple[str, str], tuple[tuple[Release, Any], ...]]:
    return _by_op("schemas", lambda rows: rows)


@functools.cache
def _kernels() -> Mapping[tuple[str, str], tuple[tuple[Release, tuple[kernels.Rule, ...] | None], ...]]:
    sets = kernels.type_sets(_data("kernels-cpu-history.json"))
    return _by_op("kernels", lambda rows: None if rows is None else kernels.rules_of(rows, sets))


def _by_op(table: str, read: Callable[[Any], Any]) -> dict[tuple[str, str], tuple[tuple[Release, Any], ...]]:
    """The entries of a table, each with its release, by domain and type of the op."""
    return {
        (domain, op): tuple((_release(release), read(rows)) for release, rows in entries)
        for domain, ops in _data("kernels-cpu-history.json")[table].items()
        for op, entries in ops.items()
    }


@functools.cache
def _data(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((_FOLDER / name).read_bytes())
    return data
