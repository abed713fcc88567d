"""A process that is started before its worker's task exists: it imports TensorFlow, then waits for the task.

Started as `python -m ignite_tf_magic.runs.parked SOCKET`, where SOCKET is the number of a descriptor. Standard input
lists the modules to import. One message at the socket names the program that the process becomes. Its arguments,
environment, directories, standard streams and main module are then the same as if it had been newly started as that
program. Modules imported early are hidden until the program imports them, so that calls that follow an import work as
usual. If the process cannot guarantee this, it starts the program anew in its place. Standard library only.
"""

from __future__ import annotations

import array
import builtins
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ignite_tf_magic.runs.deferred_imports import defer_imports

_MODULE = "-m"
_MOST_SAID_BYTES = 1 << 16
Stamps = dict[str, "tuple[int, ...] | None"]


def main() -> None:
    """Import the modules, wait for the message, and become the program that it names."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(os.read(0, 1 << 20))
    before = _stamps()
    is_warm = _has_imported(settings["environment"], settings["imports"])
    job = _await_job(control)
    control.close()
    argv: list[str] = job["argv"]
    is_the_same = argv[:2] == [sys.orig_argv[0], _MODULE] and _stamps() == before
    said = os.pread(1, _MOST_SAID_BYTES, 0)
    empty = sys.path[0]
    _take_place(job)
    if not (is_warm and is_the_same):
        _start_cold(argv)
    os.write(1, said)  # repeat output of the imports, which in a newly started process is in the log
    _become(argv, empty, settings["hidden"])


def _has_imported(environment: Mapping[str, str | None], modules: Sequence[str]) -> bool:
    """Import modules as a worker with that environment does; return False if an import fails."""
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    deferring = defer_imports()
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception:  # noqa: BLE001 - the script's own import raises it again, in a new process
        return False
    sys.meta_path.remove(deferring)  # the bootstrap adds its own
    return True


def _stamps() -> Stamps:
    """Return the state of the import paths. It changes if an import might find other modules or settings."""
    keras_home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")  # noqa: PTH111 - no RuntimeError
    # Exclude bundles: their names identify their content, and hosts record the last use in the directory's times.
    others = [path for path in sys.path[1:] if Path(path).parent.name != "parcels"]
    paths = [
        *others,
        os.path.realpath(sys.executable),
        f"{sys.prefix}/pyvenv.cfg",
        f"{keras_home}/keras.json",
    ]
    return {path: _stamp(path) for path in paths}


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _await_job(control: socket.socket) -> dict[str, Any]:
    """Wait for the message, or end this process if none can come any more."""
    descriptors = array.array("i")
    data, ancillary, _, _ = control.recvmsg(1 << 16, socket.CMSG_SPACE(8 * descriptors.itemsize))
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    pieces = []
    while data:
        pieces.append(data)
        data = control.recv(1 << 16)
    try:
        job: dict[str, Any] = json.loads(b"".join(pieces))
    except ValueError:  # the message is missing or incomplete
        os._exit(0)
    return {**job, "descriptors": list(descriptors)}


def _take_place(job: Mapping[str, Any]) -> None:
    """Take over the standard streams, directory, umask and environment that the system would give the program."""
    job_input, log, cwd = job["descriptors"]
    for descriptor, target in ((job_input, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.lseek(0, 0, os.SEEK_SET)
    os.fchdir(cwd)
    for descriptor in job["descriptors"]:
        os.close(descriptor)
    os.umask(job["umask"])
    os.environ.clear()
    os.environ.update(job["env"])


def _start_cold(argv: list[str]) -> NoReturn:
    """Replace this process with a new start of the program."""
    # Python ignores these signals, and a new program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(argv[0], argv)  # noqa: S606 - the purpose of this program


def _become(argv: list[str], empty: str, hidden: Sequence[str]) -> None:
    """Run the program's main module, as `python -m` does."""
    main_module = sys.modules["__main__"]  # kept alive, because this code uses its variables
    module = ModuleType("__main__")
    names = vars(module)
    names["__builtins__"] = builtins
    if "__annotations__" in vars(main_module):  # up to Python 3.13
        names["__annotations__"] = {}
    sys.modules["__main__"] = module
    sys.orig_argv = list(argv)
    sys.argv = [_MODULE, *argv[3:]]
    sys.path_importer_cache.pop(empty, None)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # noqa: PTH109 - a text
    if any(name in sys.modules for name in hidden):
        sys.meta_path.insert(0, _HiddenModules(hidden))
    runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
    del main_module


class _HiddenModules(MetaPathFinder, Loader):
    """Hides imported modules until they are imported again; the import returns the same modules.

    Args:
        names: The modules. Importing the last one imported the others, and does so again.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._last = names[-1] if names else ""
        self._modules = {name: sys.modules.pop(name) for name in names if name in sys.modules}
        self._specs = {name: module.__spec__ for name, module in self._modules.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for one of the hidden modules."""
        del path, target
        if fullname not in self._modules:
            return None
        own = self._specs[fullname]
        spec = ModuleSpec(fullname, self, origin=own.origin if own else None, is_package=True)
        spec.submodule_search_locations = own.submodule_search_locations if own else []
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that was imported before."""
        return self._modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec and loader. The module was executed before."""
        name = next(name for name, each in self._modules.items() if each is module)
        del self._modules[name]
        module.__spec__ = own = self._specs[name]
        module.__loader__ = own.loader if own else None
        if name == self._last:
            for other in list(self._modules):
                importlib.import_module(other)
        if not self._modules and self in sys.meta_path:
            sys.meta_path.remove(self)


if __name__ == "__main__":
    main()
