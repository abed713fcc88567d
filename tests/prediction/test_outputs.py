"""Model outputs as fields of rows: no value changes, and outputs that cannot be stored are refused."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.errors import PredictionMismatch
from ignite_tf_magic.prediction.outputs import columns_of


def test_one_output_is_called_prediction():
    (found,) = columns_of(np.zeros((4, 3), np.float32), 4).items()
    assert (found[0], found[1].shape, found[1].dtype.str) == ("prediction", (4, 3), "<f4")
    assert list(columns_of([np.zeros((4, 3))], 4, ["scores"])) == ["prediction"]


def test_several_outputs_have_their_names():
    one, two = np.zeros(4), np.zeros((4, 2))
    assert list(columns_of({"a": one, "b": two}, 4)) == ["a", "b"]
    assert list(columns_of([one, two], 4, ["a", "b"])) == ["a", "b"]
    for names in ((), ("a", "a"), ("a",)):
        assert list(columns_of((one, two), 4, names)) == ["prediction_0", "prediction_1"]


def test_one_number_is_a_scalar_and_more_dimensions_are_one_array():
    assert columns_of(np.arange(4.0)[:, None], 4)["prediction"].tolist() == [0, 1, 2, 3]
    cube = np.arange(24).reshape(2, 3, 4)
    assert columns_of(cube, 2)["prediction"].tolist() == cube.reshape(2, 12).tolist()


@pytest.mark.parametrize(
    ("given", "scalar", "array"),
    [
        ("f2", "<f4", "<f4"),
        ("u1", "<i2", "|u1"),
        ("i1", "|i1", "<i2"),
        ("u2", "<i4", "<i4"),
        ("u4", "<i8", "<i8"),
        ("i8", "<i8", "<i8"),
        ("?", "|b1", "|b1"),
        ("f8", "<f8", "<f8"),
    ],
)
def test_types_are_widened_where_they_have_no_form(given, scalar, array):
    values = np.array([0, 1, 1], given)
    for column, wanted in ((values, scalar), (np.stack([values, values], 1), array)):
        found = columns_of(column, 3)["prediction"]
        assert found.dtype.str == wanted
        assert np.array_equal(found, column)


def test_bfloat16_keeps_its_values():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    found = columns_of(np.array([1.5, -0.25, np.nan], bfloat16), 3)["prediction"]
    assert found.dtype == np.float32
    assert np.array_equal(found, [1.5, -0.25, np.nan], equal_nan=True)


def test_texts_and_what_is_no_number_stay():
    assert columns_of(np.array([b"\xc3\xa9", b"b"], object), 2)["prediction"].tolist() == ["é", "b"]
    nan = columns_of(np.array([np.nan, np.inf], np.float32), 2)["prediction"]
    assert np.array_equal(nan, np.array([np.nan, np.inf], np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (np.float32(1), r"shape \(\) for 3 rows"),
        (np.zeros((2, 3)), r"shape \(2, 3\) for 3 rows"),
        (np.zeros(3, "u8"), "uint64"),
        (np.zeros(3, "c8"), "complex64"),
        (np.full((3, 2), b"x", object), "several texts"),
    ],
)
def test_what_has_no_form_is_refused(output, said):
    with pytest.raises(PredictionMismatch, match=said):
        columns_of(output, 3)
