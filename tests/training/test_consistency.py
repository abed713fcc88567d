"""Labels from which workers can detect that they have different rows."""

from __future__ import annotations

import numpy as np
import pytest

from ignite_tf_magic.training.consistency import tell_rows_apart

RANDOM = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("labels", "tells"),
    [
        ([], False),
        ([np.float32(1.0)], False),
        ([np.zeros(32)], False),
        ([np.arange(32) // 8], False),
        ([np.arange(32) % 5], False),
        ([np.eye(4)[np.arange(32) % 4]], False),
        ([np.arange(32) == 9], False),
        ([RANDOM.integers(0, 10, 3)], False),
        ([np.array([b"a", b"b"] * 16, object)], False),
        ([RANDOM.integers(0, 2, 32)], True),
        ([RANDOM.normal(size=10)], True),
        ([np.eye(4)[RANDOM.integers(0, 4, 32)]], True),
        ([RANDOM.choice(np.array([b"a", b"b"], object), 32)], True),
        ([np.zeros(32), RANDOM.integers(0, 4, 32)], True),
    ],
)
def test_labels_that_other_rows_would_hardly_have(labels, tells):
    assert tell_rows_apart(labels) == tells
