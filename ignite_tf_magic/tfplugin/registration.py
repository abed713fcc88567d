"""Registers our URI schemes with TensorFlow, once per process.

TensorFlow's registry belongs to the process and never removes an entry. So a registration outlives a reload
of this module, and may come from another copy of the package. Therefore this module does not remember which
schemes it has registered. It probes a scheme with a path that only _filesystem.c answers.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ignite_tf_magic.errors import PluginUnavailable
from ignite_tf_magic.tfplugin.handler import FileSystem
from ignite_tf_magic.tfplugin.table import ABI, MAGIC, Control, HandlerTable, make_table

_PROBE = "\x01ignite_tf_magic.tfplugin"
_EXIT_WAIT_MS = 10_000


class _Process:
    """The state that, like TensorFlow's registry, belongs to the process."""

    def __init__(self) -> None:
        self.handlers: dict[str, FileSystem] = {}
        self._tables: dict[int, HandlerTable] = {}

    def attach(self, control_at: int) -> Control:
        """Connect our handlers to the library whose `Control` is at an address. Can be repeated."""
        control = Control.from_address(control_at)
        table = self._tables.get(control_at)
        if table is None:
            table = self._tables[control_at] = make_table(self.handlers, control.give_text)
            # C calls the table until the process ends, even after this module is gone.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(table))
            # A TensorFlow thread that enters a finalizing interpreter would crash the process.
            atexit.register(control.stop, _EXIT_WAIT_MS)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=control.forked)
        control.start(_address_of_set_status(), table)
        return control


_PROCESS = _Process()


def register_schemes(handlers: Mapping[str, FileSystem]) -> None:
    """Register file systems with TensorFlow in this process: the scheme "igfs" adds igfs:// paths.

    Any thread may call it, any number of times. Forked child processes inherit the registration. A new
    handler replaces an earlier one of its scheme, except for files that are already open.

    Args:
        handlers: The handler of each scheme.

    Raises:
        PluginUnavailable: The C library was not built, or another file system serves one of the schemes.
        ValueError: A scheme is not a URI scheme that TensorFlow recognizes.
    """
    for scheme in handlers:
        if not re.fullmatch("[a-z][a-z0-9.]{1,30}", scheme):
            raise ValueError(
                f"{scheme!r} is not a valid URI scheme: use 2 to 31 of a-z, 0-9 and '.', a letter first"
            )
    _PROCESS.handlers.update(handlers)
    missing = [scheme for scheme in handlers if _control_of(scheme) is None]
    if missing:
        _add_to_tensorflow(missing)
    for scheme in handlers:
        control_at = _control_of(scheme)
        if control_at is None:
            raise PluginUnavailable(f"TensorFlow accepted the file-system plugin but not {scheme}://")
        _PROCESS.attach(control_at)


def is_registered(scheme: str) -> bool:
    """Return whether `register_schemes` has been called for a scheme in this process."""
    return scheme in _PROCESS.handlers


def _add_to_tensorflow(schemes: list[str]) -> None:
    """Register schemes with TensorFlow. Another thread may have registered some of them first."""
    import tensorflow as tf

    path = _library_path()
    library = ctypes.CDLL(str(path))
    library.itm_control.restype = ctypes.c_void_p
    control_at = library.itm_control()
    _check_abi(Control.from_address(control_at), str(path))
    control = _PROCESS.attach(control_at)
    for scheme in schemes:
        if control.offer(scheme.encode()):
            raise PluginUnavailable(f"cannot register {scheme}://: this process has too many schemes already")
    with suppress(tf.errors.AlreadyExistsError):  # the caller checks next who serves them
        tf.experimental.register_filesystem_plugin(str(path))


def _control_of(scheme: str) -> int | None:
    """Return the address of the `Control` that serves a scheme, or None if nothing serves it.

    Raises:
        PluginUnavailable: Another file system serves the scheme.
    """
    import tensorflow as tf

    try:
        answer = tf.io.gfile.stat(f"{scheme}://{_PROBE}")
    except tf.errors.UnimplementedError as error:
        if error.message.startswith("File system scheme"):
            return None
        raise PluginUnavailable(_foreign(scheme)) from error
    except tf.errors.OpError as error:
        raise PluginUnavailable(_foreign(scheme)) from error
    if answer.mtime_nsec != MAGIC:
        raise PluginUnavailable(_foreign(scheme))
    _check_abi(Control.from_address(answer.length), f"the plugin that serves {scheme}://")
    return int(answer.length)


def _foreign(scheme: str) -> str:
    return (
        f"another file system serves {scheme}:// in this process already; keep the package that registers "
        "it (tensorflow-io, for example) from being imported, and restart"
    )


def _check_abi(control: Control, where: str) -> None:
    if (control.magic, control.abi) != (MAGIC, ABI):
        raise PluginUnavailable(
            f"{where} was built for another version of ignite_tf_magic: restart this process, and reinstall "
            "the package if that does not help"
        )


def _library_path() -> Path:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_filesystem{suffix}")
        if path.exists():
            return path
    raise PluginUnavailable(
        "TensorFlow cannot use our file systems: the compiled plugin is missing, because there was no C "
        "compiler when ignite_tf_magic was installed; install one (apt-get install gcc) and then the "
        "package again (pip install --force-reinstall --no-deps ignite_tf_magic)"
    )


def _address_of_set_status() -> int | None:
    """Return the address of TF_SetStatus in the framework library that TensorFlow has loaded.

    Raises:
        PluginUnavailable: TensorFlow has no such library on this platform.
    """
    import tensorflow as tf

    for path in sorted(Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework*")):
        return ctypes.cast(ctypes.CDLL(str(path)).TF_SetStatus, ctypes.c_void_p).value
    raise PluginUnavailable(
        f"TensorFlow {tf.__version__} has no libtensorflow_framework in {tf.sysconfig.get_lib()}: its "
        "file-system plugins cannot be used on this platform"
    )
