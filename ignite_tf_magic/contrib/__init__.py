"""The names of TensorFlow 1: `from ignite_tf_magic.contrib import IgniteDataset`, and `install` for the old ones."""

from __future__ import annotations

from ignite_tf_magic import IgniteDataset
from ignite_tf_magic.contrib.old_names import install

__all__ = ["IgniteDataset", "install"]
