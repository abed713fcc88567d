"""`results/igfs.json`: compares igfs with raw calls on equal rows: large files, a checkpoint, single operations."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plan import Report
from benchmarks.use_igfs import BLOCK, read, read_records, there_and_back, write
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.igfs.filesystem import IgfsFileSystem
from ignite_tf_magic.igfs.layout import DirectoryNode, entry_key
from ignite_tf_magic.igfs.paths import parse
from ignite_tf_magic.protocol.ops import Concurrency, Isolation
from ignite_tf_magic.session.registration import register
from ignite_tf_magic.settings.options import ConnectOptions

# Three directories, the file name, and the row of names.
_DEPTH = 5
_BATCH = 60
_RAW_WRITER = 7 << 64

Pass = Callable[[], None]


def run(
    options: ConnectOptions, file_mib: int, checkpoint_mib: int, rounds: int, report: Report
) -> list[dict[str, Any]]:
    """Measure all cases. The variants of a case take turns, and the best of each counts."""
    endpoint = options.endpoints[0]
    os.environ["IGNITE_TF_CLUSTER"] = str(endpoint)
    fs = IgfsFileSystem(endpoint.host, endpoint.port, skip_instance_cache=True)
    fs.makedirs("/bench", exist_ok=True)
    with connect(options) as client:
        blocks = client.cache(f"{fs.volume.store.name}-blocks")
        rows = [
            *_large_file(fs, blocks, file_mib, rounds, report),
            *_checkpoint(checkpoint_mib, rounds, report),
            *_operations(fs, client.cache(f"{fs.volume.store.name}-meta"), rounds, report),
        ]
    fs.rm("/bench", recursive=True)
    fs.volume.close()
    return rows


def _best(variants: dict[str, Pass], rounds: int, between: Pass = lambda: None) -> dict[str, float]:
    best: dict[str, float] = dict.fromkeys(variants, float("inf"))
    for _ in range(rounds):
        for name, one_pass in variants.items():
            began = time.perf_counter()
            one_pass()
            best[name] = min(best[name], time.perf_counter() - began)
            between()
    return best


def _large_file(
    fs: IgfsFileSystem, blocks: Cache, file_mib: int, rounds: int, report: Report
) -> Iterator[dict[str, Any]]:
    register()
    block = np.random.default_rng(1).bytes(BLOCK)
    keys = [uuid.UUID(int=_RAW_WRITER + index) for index in range(file_mib)]
    path, uri = "/bench/file", "igfs:///bench/file"

    def write_raw() -> None:
        for key in keys:
            blocks.put(key, block)

    def remove() -> None:
        for first in range(0, len(keys), 256):
            blocks.remove_all(keys[first : first + 256])
        if fs.exists(path):
            fs.rm(path)
        _let_garbage_go(fs)

    writes = {
        "raw_put": write_raw,
        "fsspec": lambda: write(fs.open(path, "wb"), block, file_mib),
        "tensorflow": partial(_write_tensorflow, uri, block, file_mib),
    }
    reads = {
        "raw_get": lambda: [blocks.get(key) for key in keys],
        "fsspec": lambda: read(fs.open(path, "rb")),
        "tensorflow": partial(read_records, uri),
    }
    report(f"igfs: write a file of {file_mib} MiB")
    yield from _file_rows("write", _best(writes, rounds, remove), file_mib)
    report(f"igfs: read a file of {file_mib} MiB")
    writes["raw_put"]()
    writes["fsspec"]()
    yield from _file_rows("read", _best(reads, rounds), file_mib)
    remove()


def _file_rows(case: str, best: dict[str, float], file_mib: int) -> Iterator[dict[str, Any]]:
    raw = next(iter(best.values()))
    for name, seconds in best.items():
        yield _row(case, name, mb_per_s=file_mib * BLOCK / 1e6 / seconds, ratio_to_raw=raw / seconds)


def _write_tensorflow(uri: str, block: bytes, num_blocks: int) -> None:
    import tensorflow as tf

    write(tf.io.gfile.GFile(uri, "wb"), block, num_blocks)


def _let_garbage_go(fs: IgfsFileSystem) -> None:
    while any(key.startswith("g/") for key in fs.volume.collector.records()):
        fs.volume.sweep(10_000)
        time.sleep(0.5)


def _checkpoint(checkpoint_mib: int, rounds: int, report: Report) -> Iterator[dict[str, Any]]:
    import tensorflow as tf

    report(f"igfs: a checkpoint of {checkpoint_mib} MiB")
    size = checkpoint_mib * BLOCK // 4 // 10
    variables = [tf.Variable(tf.random.uniform((size,))) for _ in range(10)]
    checkpoint = tf.train.Checkpoint(variables=variables)
    local = Path(tempfile.mkdtemp(prefix="bench-checkpoint-"))

    def save_locally() -> None:
        checkpoint.write(str(local / "checkpoint"))
        for path in local.iterdir():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    best = _best(
        {"local_fsync": save_locally, "igfs": lambda: checkpoint.write("igfs:///bench/checkpoint")}, rounds
    )
    shutil.rmtree(local)
    for name, seconds in best.items():
        yield _row(
            "checkpoint",
            name,
            mb_per_s=checkpoint_mib * BLOCK / 1e6 / seconds,
            ratio_to_raw=best["local_fsync"] / seconds,
            time_ratio=seconds / best["local_fsync"],
        )


def _operations(fs: IgfsFileSystem, meta: Cache, rounds: int, report: Report) -> Iterator[dict[str, Any]]:
    report("igfs: stat, create, rename")
    base = "/bench/deep/er"
    fs.makedirs(base, exist_ok=True)
    fs.touch(f"{base}/file")
    fs.mkdir(f"{base}/directory")
    numbers = iter(range(10**9))
    for case, (raw, ours) in {
        "stat": (_raw_stat, partial(fs.info, f"{base}/file")),
        "create": (_raw_create, lambda: fs.touch(f"{base}/{next(numbers)}")),
        "rename_file": (_raw_rename, partial(there_and_back, fs, f"{base}/file", numbers)),
        "rename_directory": (_raw_rename, partial(there_and_back, fs, f"{base}/directory", numbers)),
    }.items():
        ours()
        path_keys = _keys_of_path(fs, f"{base}/file") if case == "stat" else None
        with _row_of_names(meta) as made_keys:
            raw_rows = path_keys or made_keys
            best = _best(
                {
                    "raw": partial(_repeat, partial(raw, meta, raw_rows, numbers)),
                    "igfs": partial(_repeat, ours),
                },
                rounds,
            )
        twice = 2 if case.startswith("rename") else 1
        for name, seconds in best.items():
            calls = _BATCH * (twice if name == "igfs" else 1)
            each = seconds / calls
            raw_each = best["raw"] / _BATCH
            yield _row(case, name, ratio_to_raw=raw_each / each, time_ratio=each / raw_each, ms=each * 1e3)


def _keys_of_path(fs: IgfsFileSystem, path: str) -> list[str]:
    """Return the keys that looking up a path reads, because other keys are on other nodes."""
    found = fs.volume.tree.find(parse(path))
    directories = [node for node in found.nodes if isinstance(node, DirectoryNode)]
    return [entry_key(node.id, name) for node, name in zip(directories, found.path, strict=True)]


def _repeat(call: Pass) -> None:
    for _ in range(_BATCH):
        call()


@contextmanager
def _row_of_names(meta: Cache) -> Iterator[list[str]]:
    """Put rows for the raw calls, as large as those of a path and its names."""
    keys = [f"e/bench-{index:022x}/name" for index in range(_DEPTH)]
    meta.put_all(dict.fromkeys(keys, bytes(40)))
    try:
        yield keys
    finally:
        meta.remove_all(keys)


def _raw_stat(meta: Cache, keys: list[str], _: Iterator[int]) -> None:
    meta.get_all(keys)


def _raw_create(meta: Cache, keys: list[str], numbers: Iterator[int]) -> None:
    with meta.client.transaction(Concurrency.OPTIMISTIC, Isolation.SERIALIZABLE) as transaction:
        mine = meta.within(transaction)
        new = f"{keys[-1]}{next(numbers)}"
        mine.get_all([*keys, new])
        mine.put_all({keys[-1]: bytes(300), new: bytes(40)})


def _raw_rename(meta: Cache, keys: list[str], numbers: Iterator[int]) -> None:
    with meta.client.transaction(Concurrency.OPTIMISTIC, Isolation.SERIALIZABLE) as transaction:
        mine = meta.within(transaction)
        new = f"{keys[0]}{next(numbers)}"
        mine.get_all([*keys, new])
        mine.put_all({keys[-1]: bytes(300), new: bytes(40)})
        mine.remove_all([keys[0]])
    keys[0] = new


def _row(case: str, variant: str, mb_per_s: float | None = None, **figures: float) -> dict[str, Any]:
    """Return one result: `ratio_to_raw` compares speeds, `time_ratio` compares times."""
    rounded = {name: round(value, 3) for name, value in figures.items()}
    return {"case": case, "variant": variant, "mb_per_s": mb_per_s and round(mb_per_s, 1), **rounded}
