"""Names from TensorFlow 1: exports `IgniteDataset`, and `install` for the old import paths."""

from __future__ import annotations

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.contrib.old_names import install

__all__ = ["IgniteDataset", "install"]
