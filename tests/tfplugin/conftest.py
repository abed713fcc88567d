"""A file system of the tests' own, known to TensorFlow as mem://."""

from __future__ import annotations

import pytest

from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree


@pytest.fixture
def mem() -> MemoryTree:
    """An empty mem://. TensorFlow knows the scheme once per process; each test brings its own tree."""
    tree = MemoryTree()
    register_schemes({"mem": tree})
    return tree
