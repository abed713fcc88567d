"""Uses igfs through its public interfaces; as a program it repeats one use, also in older trees.

It is started by the path of this file, so that only `ignite_tf_magic` and `benchmarks.process` come from the tree.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import fsspec
import numpy as np

from benchmarks.process import Stopwatch, repeat, serve, task_of_this_process

USES = (
    "stat",
    "create",
    "rename_file",
    "rename_directory",
    "write",
    "read",
    "write_tf",
    "read_tf",
    "checkpoint",
)
BLOCK = 1024 * 1024
_CALLS = 60
_BLOCKS = 128
_VARIABLES = 10


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    os.environ["IGNITE_TF_CLUSTER"] = f"{task['host']}:{task['port']}"  # for addresses without a host
    fs = fsspec.filesystem("igfs", host=task["host"], port=task["port"], skip_instance_cache=True)
    base = f"/pairs/deep/{task['tree']}"
    fs.makedirs(base, exist_ok=True)
    call, calls = _use(task["use"], fs, base)

    def one_pass(watch: Stopwatch) -> int:
        with watch:
            for _ in range(calls):
                call()
        return calls

    repeat(one_pass, calls, 0)
    serve(one_pass, calls, {"calls": calls})


def write(file: Any, block: bytes, num_blocks: int) -> None:
    """Write to an open file of igfs or TensorFlow, and close it."""
    with file:
        for _ in range(num_blocks):
            file.write(block)


def read(file: Any) -> None:
    """Read an open file to its end, and close it."""
    with file:
        while file.read(BLOCK):
            pass


def read_records(uri: str) -> None:
    """Read as a dataset does: in C++, through the plugin."""
    import tensorflow as tf

    for _ in tf.data.FixedLengthRecordDataset(uri, BLOCK, buffer_size=BLOCK):
        pass


def there_and_back(fs: Any, path: str, numbers: Iterator[int]) -> None:
    """Rename a file or directory, and rename it back."""
    other = f"{path}-{next(numbers)}"
    fs.mv(path, other)
    fs.mv(other, path)


def _use(use: str, fs: Any, base: str) -> tuple[Callable[[], object], int]:
    """Return a call, and the number of calls in a pass."""
    numbers, path = itertools.count(), f"{base}/{use}"
    if use in ("stat", "create"):
        # The nodes that hold a path's rows are random; with many paths, the trees are comparable.
        places = [f"{base}/{number}" for number in range(_CALLS)]
        for place in places:
            fs.makedirs(place, exist_ok=True)
            fs.touch(f"{place}/file")
        turns = itertools.cycle(places)
        if use == "stat":
            return lambda: fs.info(f"{next(turns)}/file"), _CALLS
        return lambda: fs.touch(f"{next(turns)}/{next(numbers)}"), _CALLS
    if use.startswith("rename"):
        (fs.mkdir if use == "rename_directory" else fs.touch)(path)
        return lambda: there_and_back(fs, path, numbers), _CALLS // 2
    block = np.random.default_rng(1).bytes(BLOCK)
    if use.endswith("_tf") or use == "checkpoint":
        _register()
        return _use_of_tensorflow(use, f"igfs://{path}", block), 1
    if use == "read":
        write(fs.open(path, "wb"), block, _BLOCKS)
        return lambda: read(fs.open(path, "rb")), 1
    return lambda: write(fs.open(path, "wb"), block, _BLOCKS), 1


def _use_of_tensorflow(use: str, uri: str, block: bytes) -> Callable[[], object]:
    import tensorflow as tf

    if use == "checkpoint":
        size = _BLOCKS // 2 * BLOCK // 4 // _VARIABLES
        variables = [tf.Variable(tf.random.uniform((size,))) for _ in range(_VARIABLES)]
        return partial(tf.train.Checkpoint(variables=variables).write, uri)

    def write_file() -> None:
        write(tf.io.gfile.GFile(uri, "wb"), block, _BLOCKS)

    if use == "write_tf":
        return write_file
    write_file()
    return partial(read_records, uri)


def _register() -> None:
    """Register igfs:// with TensorFlow, in trees with the new or the old module name."""
    for name in ("ignite_tf_magic.session.registration", "ignite_tf_magic.registration"):
        try:
            import_module(name).register()
            return
        except ModuleNotFoundError:
            continue
    raise SystemExit("no module of this tree registers igfs:// with TensorFlow")


if __name__ == "__main__":
    main(task_of_this_process())
