"""The in-memory file system mem:// for the plugin's tests."""

from __future__ import annotations

import pytest

from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree


@pytest.fixture
def mem() -> MemoryTree:
    """An empty mem://. TensorFlow registers the scheme once per process; each test supplies a new tree."""
    tree = MemoryTree()
    register_schemes({"mem": tree})
    return tree
