"""Tests that a client without POSIX-only modules and functions runs jobs on POSIX hosts."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys

from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.ssh import SshTransport
from tests.launch.relay_jobs import end_all
from tests.test_architecture import HIDE_POSIX

# asyncssh and asyncio choose imports by platform, so they are imported before the functions are hidden.
FIRST = "import asyncio, asyncssh"
CLIENT = """
import os, sys, threading
for name in ("fork", "forkpty", "register_at_fork", "posix_spawn", "setsid", "getuid", "geteuid", "killpg"):
    delattr(os, name)
from ignite_tf_magic.launch.hosts import Host
from ignite_tf_magic.launch.jobs import Job
from ignite_tf_magic.launch.ssh import SshOptions, SshTransport
from ignite_tf_magic.launch.watch import HostWatch
class Sink:
    def data(self, host, path, offset, data):
        sys.stdout.write(data.decode())
    def gap(self, host, path, start, end):
        raise AssertionError
def look():
    if watch.view.jobs and watch.view.jobs["w0"].has_ended:
        ended.set()
ended = threading.Event()
with Host("h1", SshTransport("box", SshOptions(config_file=sys.argv[1])), python=sys.argv[2]) as host:
    watch = HostWatch(host, "r1", logs={"w0.log": 0}, sink=Sink(), on_change=look)
    argv = ("/bin/sh", "-c", "cat; exit 4")
    host.start(Job("r1", "w0", 1, argv, {}, "w0.log", stdin_text="from far away\\n", lease_s=30))
    assert ended.wait(300)
    watch.stop()
print(watch.view.jobs["w0"].code, sorted({"fcntl", "pwd", "grp", "resource", "termios"} & set(sys.modules)))
"""


def test_a_job_is_started_watched_and_ended(box):
    with Host("h1", SshTransport("box", box.options), python=sys.executable) as host:
        host.hello()
        command = [sys.executable, "-c", FIRST + HIDE_POSIX + CLIENT, str(box.ssh_config), sys.executable]
        env = {**os.environ, "USERNAME": getpass.getuser(), "USER": getpass.getuser()}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "from far away\n4 []\n"), done.stderr
        end_all(host)
