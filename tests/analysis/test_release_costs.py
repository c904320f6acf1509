"""A form is taken only where it wins on all releases of ONNX Runtime that a run allows, of those that were measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from ortopt import optimize
from ortopt.analysis import cost_tables, costs, releases
from ortopt.analysis.cost_tables import table_for, table_of
from ortopt.analysis.costs import Cost, Form, Verdict
from ortopt.analysis.kernels import CPU, CUDA
from ortopt.instrumentation.explanation import Explanation
from ortopt.measurement.forms.catalog import UNMEASURED
from ortopt.options import Options
from ortopt.reporting.costs import as_data, why
from ortopt.testing import check_keeps, check_rewrites, parse

FORM = Form("com.microsoft", "QuickGelu")
OWN = releases.parse_release(costs.shipped().measured.onnxruntime)
WINS, LOSES, UNCLEAR = ["pays", 1.1, 1.7], ["loses", 0.8, 1.2], ["unknown", 0.9, 1.2]
Measured: TypeAlias = Callable[..., None]


def forget() -> None:
    cost_tables._data.cache_clear()
    cost_tables._shipped_for.cache_clear()


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """Makes up what one form costs on releases; all others have been measured nowhere."""

    def write(form: Form = FORM, **speeds: Any) -> None:
        named = {name.removeprefix("r").replace("_", "."): speed for name, speed in speeds.items()}
        variant = {"variant": form.variant} if form.variant else {}
        row = {"op": str(form._replace(variant="")), **variant, "speeds": named}
        data = {"releases": {"1.20.1": "", "1.23.2": "", "1.27.0": ""}, "processor": "p", "threads": 1, "costs": [row]}
        path = tmp_path / "releases.json"
        path.write_text(json.dumps(data))
        monkeypatch.setattr(cost_tables, "PATH", path)
        forget()

    yield write
    monkeypatch.undo()
    forget()


def found(oldest: tuple[int, int], form: Form = FORM) -> Cost:
    cost = cost_tables.shipped_for(oldest).find(form, CPU)
    assert cost is not None
    return cost


def test_for_the_release_of_the_table_and_newer_ones_it_is_the_table() -> None:
    assert cost_tables.shipped_for(OWN) is costs.shipped()
    assert cost_tables.shipped_for((OWN[0], OWN[1] + 1)) is costs.shipped()
    assert cost_tables.shipped_for((1, 20)) is not costs.shipped()


@pytest.mark.parametrize(
    ("speeds", "oldest", "verdict", "blamed"),
    [
        ({"r1_20": LOSES, "r1_23": WINS, "r1_27": WINS}, (1, 20), Verdict.LOSES, "1.20"),
        ({"r1_20": LOSES, "r1_23": WINS, "r1_27": WINS}, (1, 19), Verdict.LOSES, "1.20"),
        ({"r1_20": LOSES, "r1_23": WINS, "r1_27": WINS}, (1, 22), Verdict.LOSES, "1.20"),  # 1.22 is taken for 1.20
        ({"r1_20": LOSES, "r1_23": WINS, "r1_27": WINS}, (1, 23), Verdict.PAYS, ""),
        ({"r1_20": WINS, "r1_23": LOSES, "r1_27": LOSES}, (1, 20), Verdict.LOSES, "1.23, 1.27"),  # none may lose
        ({"r1_20": WINS, "r1_23": LOSES, "r1_27": UNCLEAR}, (1, 20), Verdict.LOSES, "1.23"),
        ({"r1_20": WINS, "r1_23": UNCLEAR, "r1_27": WINS}, (1, 20), Verdict.UNKNOWN, "1.23"),
        ({"r1_20": WINS, "r1_27": WINS}, (1, 20), Verdict.UNKNOWN, "1.23"),  # nobody has measured it there
        ({"r1_20": None, "r1_23": WINS, "r1_27": WINS}, (1, 20), Verdict.PAYS, ""),  # 1.20 refuses it: nothing to weigh
        ({"r1_20": None, "r1_23": None, "r1_27": None}, (1, 20), Verdict.PAYS, ""),
    ],
)
def test_a_row_holds_on_all_releases_that_are_allowed(
    measured: Measured, speeds: dict[str, Any], oldest: tuple[int, int], verdict: Verdict, blamed: str
) -> None:
    measured(**speeds)
    cost = found(oldest)
    assert (cost.verdict, cost.releases) == (verdict, blamed)


def test_a_row_has_the_speeds_of_older_releases_beside_those_of_processors(measured: Measured) -> None:
    measured(r1_20=["pays", 1.05, 1.2], r1_23=["pays", 1.3, 9.0], r1_27=WINS)
    cost, own = found((1, 20)), costs.shipped().find(FORM, CPU)
    assert own is not None
    assert own.speed is not None
    assert cost.speed == (min(own.speed[0], 1.05), 9.0)
    assert cost.speeds == {**own.speeds, "ONNX Runtime 1.20 to 1.27": (1.05, 9.0)}


def test_what_loses_anyway_and_other_providers_are_as_they_are(measured: Measured) -> None:
    measured(Form("", "PRelu"), r1_20=WINS, r1_23=WINS, r1_27=WINS)
    assert (found((1, 20), Form("", "PRelu")).verdict, found((1, 20), Form("", "PRelu")).releases) == (
        Verdict.LOSES,
        "",
    )
    on_cuda = [cost for cost in costs.shipped().costs if cost.provider == CUDA]
    assert [cost for cost in cost_tables.shipped_for((1, 20)).costs if cost.provider == CUDA] == on_cuda


def test_the_table_of_a_run_is_that_for_the_oldest_release_that_it_allows(measured: Measured, tmp_path: Path) -> None:
    measured(r1_20=LOSES, r1_23=WINS, r1_27=WINS)
    assert table_for(Options(min_onnxruntime=OWN)) is costs.shipped()
    table = table_for(Options(min_onnxruntime=(1, 20)))
    assert table is cost_tables.shipped_for((1, 20))
    assert table.digest != costs.shipped().digest
    assert table.name == f"{costs.shipped().name}, for 1.20 and newer"
    row = {"op": str(FORM), "provider": CPU, "verdict": "pays", "instead_of": "its parts", "source": "s"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", "sources": {"s": "made up"}, "costs": [row]}))
    laid_over = table_of(str(path), (1, 20))
    cost = laid_over.find(FORM, CPU)
    assert cost is laid_over.own[0], "what the caller has measured counts"
    assert laid_over.over is table


TEXT = "main (float[N,8] x) => (float[N,8] y) { s = Sigmoid (x) y = Mul (x, s) }"
OLD = Options(min_onnxruntime=(1, 20))


def test_a_form_that_loses_there_or_was_not_measured_there_is_left_out(measured: Measured) -> None:
    fused = "y = com.microsoft.QuickGelu <alpha = 1.0> (x)"
    measured(r1_20=WINS, r1_23=WINS, r1_27=WINS)
    check_rewrites("quick_gelu_fusion", TEXT, fused, options=OLD)
    measured(r1_20=WINS, r1_23=LOSES, r1_27=WINS)
    check_keeps("quick_gelu_fusion", TEXT, "on the CPU with ONNX Runtime 1.23, QuickGelu is 1.25× slower", options=OLD)
    check_rewrites("quick_gelu_fusion", TEXT, fused, options=Options(min_onnxruntime=(1, 27)))
    check_rewrites("quick_gelu_fusion", TEXT, fused, options=Options(min_onnxruntime=(1, 20), force_forms=(str(FORM),)))
    measured(r1_20=WINS, r1_23=WINS)  # it makes the graph smaller; the simpler form stays all the same
    check_keeps("quick_gelu_fusion", TEXT, "Sigmoid and the products on the CPU with ONNX Runtime 1.27", options=OLD)


def test_explain_names_the_release(measured: Measured) -> None:
    measured(r1_20=LOSES, r1_23=WINS, r1_27=WINS)
    listener = Explanation()
    optimize(parse(TEXT), min_onnxruntime="1.20", verify=False, observers=[listener])
    data = as_data(listener.forms, OLD)
    assert data["costs"]["table"].endswith(", for 1.20 and newer")
    (row,) = (row for row in data["choices"] if row["form"] == str(FORM))
    assert (row["taken"], row["cost"]["releases"]) == (False, "1.20")
    assert "slower with ONNX Runtime 1.20" in why(row)
    assert "ONNX Runtime 1.20 to 1.27: 1.25× slower to 1.70× faster" in why(row)


def test_every_form_has_been_measured_on_every_release() -> None:
    data = json.loads(cost_tables.PATH.read_bytes())
    known = {cost_tables._key(row): row["speeds"] for row in data["costs"]}
    names = [releases.shown(releases.parse_release(version)) for version in data["releases"]]
    assert names[:1] == ["1.17"]
    missing = [
        f"{cost.form} {cost.sizes} on {name}"
        for cost in costs.shipped().own
        if cost.provider == CPU and cost.form not in UNMEASURED and cost.verdict is not Verdict.LOSES
        for name in names
        if name not in known.get(cost.key, {})
    ]
    assert not missing, "run: python -m tools.measure_releases --releases A,B --forms C D"
