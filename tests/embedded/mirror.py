"""A Maven repository on loopback with Ignite's three modules as tiny jars, which can simulate server failures."""

from __future__ import annotations

import hashlib
import io
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "2.99.0"
MODULES = ("ignite-core", "ignite-indexing", "ignite-spring")

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>org.apache.ignite</groupId><artifactId>{module}</artifactId><version>{version}</version>{needs}</project>"""
_NEEDS_CORE = """<dependencies><dependency><groupId>org.apache.ignite</groupId><artifactId>ignite-core</artifactId>
<version>{version}</version></dependency></dependencies>"""


class Mirror:
    """The server's files, the requests it received, and the failures that it simulates.

    Attributes:
        asked: The number of requests by file name.
        cut: Names of files that are sent only half.
        garbage: Names of files whose content is replaced.
        stall: Names of files whose requests wait until `go_on` is set.
        stalled: Set while a request waits because its file is in `stall`.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.cut: set[str] = set()
        self.garbage: set[str] = set()
        self.stall: set[str] = set()
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self.files = dict(_files())

    def jars(self) -> list[str]:
        return sorted(name for name in self.files if name.endswith(".jar"))


def _files() -> Iterator[tuple[str, bytes]]:
    for module in MODULES:
        needs = "" if module == "ignite-core" else _NEEDS_CORE.format(version=VERSION)
        base = f"{module}-{VERSION}"
        pom = _POM.format(module=module, version=VERSION, needs=needs).encode()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as jar:
            jar.writestr("META-INF/MANIFEST.MF", f"Module: {module}\n" + "x" * 5000)
        for name, content in ((f"{base}.pom", pom), (f"{base}.jar", packed.getvalue())):
            yield name, content
            yield f"{name}.sha1", hashlib.sha1(content).hexdigest().encode()


@contextmanager
def serving(mirror: Mirror) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            mirror.asked[name] += 1
            content = mirror.files.get(name)
            if content is None:
                self.send_error(404)
                return
            if name in mirror.garbage:
                content = b"<html>please log in</html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if name in mirror.cut:
                content = content[: len(content) // 2]
            if name in mirror.stall:
                self.wfile.write(content[:10])
                mirror.stalled.set()
                mirror.go_on.wait(300)
                content = content[10:]
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients are killed on purpose

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/maven"
        finally:
            mirror.go_on.set()
            server.shutdown()
            thread.join()
