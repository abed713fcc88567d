"""A session on the shared cluster, for tests whose trainings are runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ignite_tf_magic.embedded import EmbeddedCluster
from ignite_tf_magic.session import Session, open_session


@pytest.fixture(scope="module")
def session(ignite: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session. Loads of the test and the processes that it starts use the same cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_TF_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("IGNITE_TF_CLUSTER", ",".join(map(str, ignite.connect_options.endpoints)))
        with open_session(report=str) as opened:
            yield opened
