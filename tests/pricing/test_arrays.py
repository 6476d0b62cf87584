"""Codes and columns told apart without a sort of rows."""

import numpy as np
import pytest

from simulator.cost.memory.activations import _distinct
from simulator.question.arrays import equal_columns, numbered


@pytest.mark.parametrize("codes", [[], [5], [3, 3, 1, 7, 1], [9, 8, 9, 8, 10]])
def test_numbers_are_those_of_a_sort(codes: list[int]) -> None:
    numbers = np.array(codes, dtype=np.intp)
    expected = np.unique(numbers, return_index=True, return_inverse=True)
    assert [each.tolist() for each in numbered(numbers)] == [each.tolist() for each in expected]


def test_columns_are_alike_where_all_figures_are() -> None:
    figures = np.array([[1.0, 2.0, 1.0, 2.0], [5.0, 5.0, 5.0, 6.0]])
    first, alike = equal_columns(figures)
    assert len(first) == 3
    assert np.array_equal(figures[:, first[alike]], figures)


def test_columns_that_only_seem_equal_stay_apart() -> None:
    """A large figure hides the difference of two small ones in their sum."""
    figures = np.array([[1e300, 1e300], [1.0, 2.0]])
    first, alike = equal_columns(figures)
    assert first.tolist() == alike.tolist() == [0, 1]


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_distinct_rows_are_those_of_a_sort(columns: int) -> None:
    """Forty columns of up to nine passes exceed what one number holds."""
    rows = np.random.default_rng(columns).integers(0, 10, (60, columns)).astype(np.float64)
    rows = np.concatenate((rows, rows[::2]))
    assert np.array_equal(_distinct(rows), np.unique(rows, axis=0))
