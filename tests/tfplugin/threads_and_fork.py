"""Registers from eight threads at once, then forks while another thread is in a callback."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import tensorflow as tf

from ignite_tf_magic.tfplugin.registration import register_schemes
from tests.tfplugin.memory_tree import MemoryTree

tree = MemoryTree()
barrier = threading.Barrier(8)


def register(number: int) -> None:
    barrier.wait()
    register_schemes({"mem": tree} if number % 2 else {"mem": tree, "mem.two": tree})
    tf.io.write_file(f"mem:///{number}", b"")


threads = [threading.Thread(target=register, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
served = sorted(tree.files)

inside, go_on = threading.Event(), threading.Event()
tree.list_directory = lambda uri: inside.set() or (go_on.wait() and [])
stuck = threading.Thread(target=lambda: tf.io.gfile.listdir("mem:///"))
stuck.start()
inside.wait()
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    with tf.io.gfile.GFile("mem:///child", "w") as file:
        file.write("written by the child")
    register_schemes({"mem.child": tree})
    with tf.io.gfile.GFile("mem.child:///x", "w") as file:
        file.write("mem.child")
    with tf.io.gfile.GFile("mem:///child") as file:
        found = file.read()
    with tf.io.gfile.GFile("mem.child:///x") as file:
        os.write(write_end, json.dumps([found, file.read()]).encode())
    # The child does not have the thread that was in the callback, so leaving does not wait for it.
    from ignite_tf_magic.tfplugin.registration import _PROCESS
    from ignite_tf_magic.tfplugin.table import Control

    started = time.monotonic()
    left = [Control.from_address(at).stop(60_000) for at in _PROCESS._tables]
    os._exit(1 if any(left) or time.monotonic() - started > 30 else 0)
os.close(write_end)
_, status = os.waitpid(child, 0)
found, scheme = json.loads(os.read(read_end, 1000) or b"[null, null]")
go_on.set()
stuck.join()
tf.io.write_file("mem:///parent", b"still here")
json.dump(
    {
        "served": served,
        "child": found,
        "registered_in_child": scheme,
        "child_exit_code": os.waitstatus_to_exitcode(status),
        "parent": tf.io.read_file("mem:///parent").numpy().decode(),
    },
    sys.stdout,
)
