"""A TensorBoard's process: python -m ignite_tf_magic.tensorboard.server DIRECTORY.

This process starts the server process, with --serve, waits until it holds its lock, and exits, so that the server
does not belong to a kernel or shell. The server shows what `spec.json` in the directory lists. It ends on a
signal, when no browser has sent a request for the idle time, or when the directory is removed.

The server cannot import TensorFlow. So TensorBoard reads with its own Python code and through `LogTree`, uses a
fifth of the memory, and starts in a fraction of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ignite_tf_magic.launch.lock import HeldLock, is_held
from ignite_tf_magic.tensorboard.log_tree import ROOT, SCHEME, LogTree
from ignite_tf_magic.tensorboard.record import STATUS_PATH, BoardDirectory, BoardSpec

_POLL_S = 0.02
_LOOK_EVERY_S = 2.0
_PAUSE_AFTER_S = 600.0
"""Nothing is read while nobody looks: a connection that only we use must not keep an idle cluster alive."""


class Watch:
    """Records the time of the last look, that is, of the last request from a browser."""

    def __init__(self, pause_after_s: float = _PAUSE_AFTER_S) -> None:
        self._pause_after_s = pause_after_s
        self._changed = threading.Condition()
        self._last_look = time.monotonic()

    def idle_s(self) -> float:
        """Return the seconds since the last look."""
        return time.monotonic() - self._last_look

    def look(self) -> None:
        """Record a look now."""
        with self._changed:
            self._last_look = time.monotonic()
            self._changed.notify_all()

    def wait_for_look(self) -> None:
        """Block until the last look is recent enough."""
        with self._changed:
            self._changed.wait_for(lambda: self.idle_s() < self._pause_after_s)


def main(argv: list[str]) -> int:
    """Run the server or the process that starts it, as the module's docstring describes."""
    directory = BoardDirectory(Path(argv[0]))
    if argv[1:] == ["--serve"]:
        with HeldLock(directory.lock):
            _serve(directory)
        return 0
    return _detach(directory)


def _detach(directory: BoardDirectory) -> int:
    command = [sys.executable, "-m", "ignite_tf_magic.tensorboard.server", str(directory.path), "--serve"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **_own_session())
    while not is_held(directory.lock):
        if server.poll() is not None:
            return 1
        time.sleep(_POLL_S)
    os._exit(0)  # without waiting for the server


def _own_session() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS}
    return {"start_new_session": True}


def _serve(directory: BoardDirectory) -> None:
    spec = directory.spec()
    os.chdir(spec.cwd)
    watch = Watch()
    tree = LogTree(spec.sources, watch.wait_for_look)
    seen = threading.Event()
    directory.write_address(_launch(spec, tree, watch, seen))
    tree.list_all()
    seen.set()
    watch.look()  # by the user who opened it
    told: list[str] = []
    while watch.idle_s() < spec.idle_timeout_s and directory.lock.exists():
        if (troubles := tree.troubles()) != told:
            told = troubles
            _say("; ".join(troubles) or "all log directories can be read again")
        time.sleep(min(_LOOK_EVERY_S, spec.idle_timeout_s / 4))
    if directory.lock.exists():
        _say(f"ending: not viewed for {spec.idle_timeout_s / 3600:g} hours")


def _launch(spec: BoardSpec, tree: LogTree, watch: Watch, seen: threading.Event) -> int:
    """Start TensorBoard in threads of this process; returns its port."""
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # makes `import tensorflow` fail
    import fsspec
    from tensorboard import program
    from tensorboard.compat.tensorflow_stub.io import gfile

    for protocol, served_by in spec.protocols.items():
        fsspec.register_implementation(protocol, served_by, clobber=True)
    gfile.register_filesystem(SCHEME, tree)

    def make_server(app: Any, flags: Any) -> Any:
        watched = partial(_answer, app, watch, partial(_status, tree, seen))
        return program.create_port_scanning_werkzeug_server(watched, flags)

    board = program.TensorBoard(plugins=_plugins(), server_class=make_server)
    board.configure(
        logdir=ROOT,
        host=spec.host,
        port=spec.port,
        load_fast="false",
        reload_interval=spec.reload_interval_s,
        reload_multifile=True,  # the workers of a run write at the same time
    )
    try:
        return urlsplit(board.launch()).port or 0
    except program.TensorBoardServerException as error:
        sys.exit(f"error: {error.msg}")


def _plugins() -> list[Any]:
    """Return TensorBoard's own plugins, and installed plugins that work without TensorFlow."""
    from tensorboard import default

    plugins = list(default.get_static_plugins())
    for entry_point in entry_points(group="tensorboard_plugins"):
        if entry_point.name == "projector" and _is_projector_open():
            _say(
                "the projector is off: that of this TensorBoard shows any file that event files name; 2.21 does not"
            )
            continue
        try:
            plugins.append(entry_point.load())
        except ImportError as error:
            _say(f"without the plugin {entry_point.name}: {error}")
    return plugins


def _is_projector_open() -> bool:
    """Return whether event files can make this version's projector show other files of this machine."""
    major, minor = version("tensorboard").split(".")[:2]
    return (int(major), int(minor)) < (2, 21)


def _status(tree: LogTree, seen: threading.Event) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "has_events": tree.has_events() if seen.is_set() or tree.has_events() else None,
        "troubles": tree.troubles(),
    }


def _answer(
    app: Callable[..., Iterable[bytes]],
    watch: Watch,
    status: Callable[[], dict[str, Any]],
    environ: dict[str, Any],
    start_response: Callable[..., Any],
) -> Iterable[bytes]:
    """Serve one request: answer status requests here, and pass all others to TensorBoard."""
    if environ.get("PATH_INFO") == STATUS_PATH:
        body = json.dumps(status()).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response("200 OK", headers)
        return [body]
    watch.look()
    return app(environ, start_response)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
