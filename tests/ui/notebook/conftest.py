"""A kernel and data for the tests of the notebook."""

from __future__ import annotations

import os

import pytest

from tests.ui.notebook.kernels import CellResult, Kernel


@pytest.fixture(scope="module")
def kernel(ignite, tmp_path_factory):
    """A kernel with loaded magics, configured for the shared cluster."""
    home = tmp_path_factory.mktemp("notebook")
    endpoints = ",".join(map(str, ignite.connect_options.endpoints))
    env = {**os.environ, "IGNITE_TF_HOME": str(home / "home"), "IGNITE_TF_CLUSTER": endpoints}
    kernel = Kernel(env, home)
    try:
        loaded = kernel.run("%load_ext ignite_tf_magic")
        assert loaded == CellResult()
        yield kernel
    finally:
        kernel.close()
