"""What is measured: every form with a verdict has two models that compute the same, one of them by that form."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ortopt.analysis import costs, node_sizes
from ortopt.analysis.kernels import CPU
from ortopt.measurement.forms.catalog import ENTRIES, UNMEASURED, without_entry
from ortopt.measurement.forms.entry import Entry, FormComparison

CHOSEN_BY_RULES = {
    "merged with siblings",
    "instead of ONNX Runtime's own",
    "instead of Attention",
    "instead of floats",
    "instead of ConvInteger",
    "of unsigned weights",
    "of 8 bits",
    "apart from its quantization",
    "of halves as floats",
}
"""Variants that no node shows by itself: the rule that makes them says so."""

NOISY = {"MatMulNBits": 0.02, "in place of DFT": 1e-4}
"""Where one form rounds activations to 8 bits, or loses digits: how far apart results may be, by op or variant."""

STANDARD_OPS = {
    *("one for each part", "of held scores", "with its scale in the layers", "of rolled rows"),
    *("of linear interpolation", "of cubic interpolation", "of cubic interpolation in place of phases"),
    "of the phases of cubic interpolation",
    *("with four pixels as channels", "with groups merged to blocks", "of the phases of a transposed convolution"),
    "of opset 22",
}
"""Variants of standard ops in several nodes, which rules choose as well."""


def named(entry: Entry) -> str:
    return str(entry.form)


def test_every_form_of_the_table_can_be_measured() -> None:
    unmeasured = {str(form) for form in UNMEASURED}
    assert set(without_entry(costs.shipped(), CPU)) == unmeasured, "add a form to a file of ortopt/measurement/forms"


def test_no_form_is_measured_twice() -> None:
    forms = [entry.form for entry in ENTRIES]
    assert len(forms) == len(set(forms))


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_both_forms_compute_the_same_and_one_is_the_form(entry: Entry) -> None:
    forms = entry.at(entry.cases[0])
    both = forms.models()
    if entry.made_by:
        assert both[0].graph.node != both[1].graph.node
    elif entry.form.variant not in CHOSEN_BY_RULES | STANDARD_OPS:
        made = {costs.form_of(node) for node in ir.serde.deserialize_model(both[1]).graph}
        assert entry.form in made
    expected, got = (run(model, forms, as_loaded=entry.as_loaded) for model in both)
    if np.issubdtype(expected.dtype, np.integer):  # a unit may round to the neighbour
        assert np.abs(expected.astype(int) - got.astype(int)).max() <= 1
        return
    if expected.dtype == np.float16:
        expected, got = expected.astype(np.float32), got.astype(np.float32)
    half = entry.form.variant == "of halves as floats"
    of_op = NOISY.get(entry.form.op_type, 1e-5) if entry.as_loaded else 1e-5
    tolerance = 2e-3 if half else NOISY.get(entry.form.variant, of_op)
    assert np.abs(expected - got).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_sizes_have_names(entry: Entry) -> None:
    own = {
        *("axes", "components", "edges", "fitting", "group", "groups", "heads", "image", "kernel", "kv_heads", "left"),
        *(
            "multiplications",
            "nodes",
            "parts",
            "picoseconds",
            "pixels",
            "products",
            "results",
            "row",
            "saved",
            "saving",
        ),
        *("scale", "second", "side", "size", "step", "window", "zeros"),
    }
    assert all(given.keys() <= {*node_sizes.NAMES, *own} for given in entry.cases)
    assert len({tuple(given.items()) for given in entry.cases}) == len(entry.cases)


def test_cases_name_the_sizes_by_which_the_table_tells_rows_apart() -> None:
    named = {cost.form: set(cost.at) for cost in costs.shipped().costs if cost.provider == CPU and cost.at}
    unnamed = [
        str(entry.form) for entry in ENTRIES for given in entry.cases if not named.get(entry.form, set()) <= set(given)
    ]
    assert not unnamed, "such a case would count for every range of sizes"


def test_a_form_is_repeated_where_a_call_of_it_takes_no_time() -> None:
    neg = Entry(
        op="Abs", instead_of="two of Neg", values="x = normal(1, n)", before="t = Neg (x) y = Neg (t)",
        after="y = Abs (x)", repeats=True,
    )  # fmt: skip
    few, many = (neg.at({"n": n}) for n in (8, 90_000))
    assert [len(model.graph.node) for model in few.models()] == [16, 8]
    assert [len(model.graph.node) for model in many.models()] == [2, 1]


def test_values_are_made_of_sizes_and_of_each_other() -> None:
    values = """
half = n // 2
x = normal(half, *[3] * 2) - 1
k = scalar(-2.0 ** 3)
op = 'Neg'
"""
    forms = Entry(op="Neg", instead_of="", values=values, before="t = Mul (x, k) y = {op} (t)").at({"n": 4})
    model = forms._model(forms.entry.before)
    assert [(node.op_type, list(node.input)) for node in model.graph.node] == [("Mul", ["x", "k"]), ("Neg", ["t"])]
    assert forms.inputs["x"].shape == (2, 3, 3)
    assert forms.values["k"] == -8
    for wrong in ("half", "x = n.real", "x = __import__('os')", "x = [n for n in (1,)]"):
        with pytest.raises((ValueError, KeyError)):
            Entry(op="Neg", instead_of="", values=wrong, before="").at({"n": 4})


def run(model: onnx.ModelProto, forms: FormComparison, *, as_loaded: bool) -> np.ndarray:  # type: ignore[type-arg]
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not as_loaded:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[CPU])
    (result,) = session.run(["y"], dict(forms.inputs))
    return np.asarray(result)
