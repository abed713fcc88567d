"""Registers igfs:// and ignite:// with TensorFlow and fsspec, in this process."""

from __future__ import annotations

import os
import warnings

from ignite_tf_magic.after_import import after_import, call_named
from ignite_tf_magic.dataset.tfrecord_files import record_file_system
from ignite_tf_magic.errors import PluginUnavailable, with_its_extra
from ignite_tf_magic.igfs.tensorflow_files import TensorFlowFiles
from ignite_tf_magic.tfplugin.handler import FileSystem
from ignite_tf_magic.tfplugin.local_guard import LocalGuard, complete_gfile
from ignite_tf_magic.tfplugin.registration import register_schemes


class _Handlers:
    """The file system handler of each scheme. They are created on first use, because they keep connections."""

    def __init__(self) -> None:
        self._made: dict[str, FileSystem] = {}
        self.guard = LocalGuard()

    def all(self) -> dict[str, FileSystem]:
        if not self._made:
            self._made = {"igfs": TensorFlowFiles(), "ignite": record_file_system()}
        return self._made


_HANDLERS = _Handlers()
_BY_STRATEGY = {
    "async": "ignite_tf_magic.training.chief_client:know_servers",
    "standalone": "ignite_tf_magic.training.chief_client:know_servers",
    "between": "ignite_tf_magic.training.session_devices:reach_own_devices",
}


def register() -> None:
    """Let TensorFlow read and write igfs:// files, and read caches at ignite://. A second call does nothing.

    Imports TensorFlow. The workers of a run, and notebooks after `%load_ext ignite_tf_magic`, call this automatically
    as soon as TensorFlow is imported.

    Raises:
        PluginUnavailable: The package was installed without a C compiler; the message says what to do.
        ImportError: TensorFlow is not installed.
    """
    handlers = _HANDLERS.all()
    try:
        register_schemes(handlers)
    except ModuleNotFoundError as error:
        raise with_its_extra(error, "ignite_tf_magic.register") or error from None
    _HANDLERS.guard.add(handlers)
    complete_gfile()


def register_or_warn() -> None:
    """Call `register`; if it is not possible, warn and continue, since a script may not need these files."""
    try:
        register()
    except PluginUnavailable as error:
        warnings.warn(f"igfs:// and ignite:// are unknown to TensorFlow here: {error}", stacklevel=2)


def prepare_tensorflow() -> None:
    """Prepare a task's TensorFlow just after its import: file schemes, and the servers that the task drives."""
    register_or_warn()
    if prepare := _BY_STRATEGY.get(os.environ.get("IGNITE_TF_STRATEGY", "")):
        call_named(prepare)
    if os.environ.get("IGNITE_TF_COMPAT"):
        call_named("ignite_tf_magic.contrib.old_names:install")


def register_fsspec() -> None:
    """Register igfs:// with fsspec. Needed where this package is importable but not installed, as in a worker."""
    import fsspec

    fsspec.register_implementation("igfs", "ignite_tf_magic.igfs.filesystem.IgfsFileSystem", clobber=True)


def register_on_import() -> None:
    """Register with TensorFlow and fsspec as soon as they are imported, or at once if they already are."""
    after_import("tensorflow", register_or_warn)
    after_import("fsspec", register_fsspec)
