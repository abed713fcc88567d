"""Local files under a protocol that fails while a file named `down` is in the same directory or above it."""

from __future__ import annotations

from pathlib import Path

from fsspec.implementations.local import LocalFileSystem


class FlakyFileSystem(LocalFileSystem):
    protocol = "flaky"

    def _check(self, path):
        path = Path(self._strip_protocol(path))
        if any((parent / "down").exists() for parent in [path, *path.parents]):
            raise ConnectionRefusedError("the files are down")

    def ls(self, path, detail=False, **options):
        self._check(path)
        return super().ls(path, detail=detail, **options)

    def cat_file(self, path, start=None, end=None, **options):
        self._check(path)
        return super().cat_file(path, start, end, **options)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("flaky://"))
