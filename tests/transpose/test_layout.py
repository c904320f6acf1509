"""What permutations do, against numpy."""

from __future__ import annotations

import itertools

import numpy as np

from ortopt.transpose.layout import compose, inverse, normal, reordered, with_axes, without_axes

PERMS = [*itertools.permutations(range(3)), *itertools.permutations(range(4))]


def test_inverse_and_composition() -> None:
    for perm in PERMS:
        assert compose(normal(perm), inverse(normal(perm))) is None
        x = np.arange(2 ** len(perm) * 3).reshape(3 * 2, *[2] * (len(perm) - 1))
        for other in itertools.permutations(range(len(perm))):
            both = compose(normal(perm), normal(other)) or tuple(range(len(perm)))
            assert (x.transpose(perm).transpose(other) == x.transpose(both)).all()


def test_axes_that_go() -> None:
    for perm in PERMS:
        w = np.arange(120).reshape(2, 3, 4, 5)[..., : 5 if len(perm) == 4 else 1]
        w = w if len(perm) == 4 else w[..., 0]
        for axes in itertools.combinations(range(len(perm)), 2):
            v = w.transpose(perm)
            dropped = w.sum(axis=tuple(perm[axis] for axis in axes))
            assert (v.sum(axis=axes) == dropped.transpose(without_axes(perm, axes))).all()


def test_axes_that_come_stand_at_the_same_places() -> None:
    for perm in PERMS:
        for axes in itertools.combinations(range(len(perm) + 2), 2):
            grown = with_axes(perm, axes)
            assert without_axes(grown, axes) == perm
            assert all(grown[axis] == axis for axis in axes)


def test_items_by_axis() -> None:
    w = np.zeros((2, 3, 4))
    v = w.transpose(2, 0, 1)
    assert reordered(v.shape, (2, 0, 1)) == w.shape
