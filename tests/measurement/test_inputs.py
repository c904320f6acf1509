"""Inputs to time a model with: one for each representative size that the model runs on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ortopt.measurement.inputs import stored_inputs
from ortopt.testing import parse
from ortopt.verification.input_sets import inputs_from

MODEL = "main (int64[batch,seq] ids) => (int64[batch,seq] y) { y = Neg (ids) }"


def test_one_for_each_size(tmp_path: Path) -> None:
    stored = list(stored_inputs(parse(MODEL), tmp_path, lambda _: True, sizes={}))
    assert [each.sizes for each in stored] == [{"batch": 1, "seq": 16}, {"batch": 1, "seq": 128}]
    assert [inputs_from(each.folder)["ids"].shape for each in stored] == [(1, 16), (1, 128)]


def test_sizes_that_the_model_does_not_run_at_are_left_out(tmp_path: Path) -> None:
    def runs(folder: Path) -> bool:
        return inputs_from(folder)["ids"].shape == (1, 16)

    stored = list(stored_inputs(parse(MODEL), tmp_path, runs, sizes={}))
    assert [each.sizes for each in stored] == [{"batch": 1, "seq": 16}]


def test_others_where_it_runs_at_no_representative_size(tmp_path: Path) -> None:
    def runs(folder: Path) -> bool:
        return inputs_from(folder)["ids"].shape[0] == 2

    (stored,) = stored_inputs(parse(MODEL), tmp_path, runs, sizes={})
    assert stored.sizes == {}


def test_none_where_it_does_not_run_at_all(tmp_path: Path) -> None:
    assert not list(stored_inputs(parse(MODEL), tmp_path, lambda _: False, sizes={}))


def test_inputs_of_the_caller(tmp_path: Path) -> None:
    (stored,) = stored_inputs(
        parse(MODEL), tmp_path, lambda _: True, sizes={}, given={"ids": np.ones((3, 3), np.int64)}
    )
    assert inputs_from(stored.folder)["ids"].shape == (3, 3)
