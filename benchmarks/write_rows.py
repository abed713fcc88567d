"""Variant `put_rows`: this package's bulk load, from columns to confirmed rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.cases import columns_of, config_of, mnist, type_name
from benchmarks.process import Stopwatch, VariantFailed, serve, task_of_this_process
from ignite_tf_magic.client.client import Cache, connect
from ignite_tf_magic.client.load import put_rows
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint


def check_loaded(cache: Cache, columns: dict[str, Any]) -> int:
    """Check one row of a cache, and return its number of rows."""
    key = len(columns["label"]) // 2
    row = cache.get(key)
    if row is None or bytes(row.fields["pixels"]) != columns["pixels"][key].tobytes():
        raise VariantFailed(f"row {key} came back as {row!r:.200}")
    return cache.size()


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    case = mnist(task["num_rows"])
    columns, keys = columns_of(case, 0, case.num_rows), np.arange(case.num_rows)
    with connect(ConnectOptions((Endpoint(task["host"], task["port"]),))) as client:
        config = config_of(
            case, task["cache"], RowEncoder(type_name(case), columns, keys), with_sql=task["with_sql"]
        )

        def one_pass(watch: Stopwatch) -> int:
            cache = client.create_cache(config)
            try:
                with watch:
                    put_rows(cache, RowEncoder(type_name(case), columns, keys))
                return check_loaded(cache, columns)
            finally:
                client.destroy_cache(cache.name)

        one_pass(Stopwatch())
        serve(one_pass, case.num_rows, {})


if __name__ == "__main__":
    main(task_of_this_process())
