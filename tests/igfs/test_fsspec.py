"""Runs fsspec's complete test suite for file systems on real nodes."""

from __future__ import annotations

import fsspec.tests.abstract as abstract
import pytest

from ignite_tf_magic.igfs.filesystem import IgfsFileSystem


@pytest.fixture(scope="module")
def auto_mkdir_fs(ignite):
    endpoint = ignite.connect_options.endpoints[0]
    fs = IgfsFileSystem(endpoint.host, endpoint.port, auto_mkdir=True, skip_instance_cache=True)
    fs.makedirs("/abstract", exist_ok=True)
    yield fs
    fs.volume.close()


class IgfsFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, auto_mkdir_fs):
        return auto_mkdir_fs

    @pytest.fixture
    def fs_path(self):
        return "/abstract"


class TestCopy(abstract.AbstractCopyTests, IgfsFixtures):
    pass


class TestGet(abstract.AbstractGetTests, IgfsFixtures):
    pass


class TestPut(abstract.AbstractPutTests, IgfsFixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, IgfsFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, IgfsFixtures):
    pass
