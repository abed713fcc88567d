"""Variant `pyignite_put_all`: pyignite's put_all with its best batch size; the objects are made beforehand."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any

import numpy as np
from pyignite import Client, GenericObjectMeta
from pyignite.datatypes import ByteArrayObject, IntObject, LongObject

from benchmarks.cases import Case, columns_of, config_of, mnist, type_name
from benchmarks.process import Stopwatch, best_of, repeat, serve, task_of_this_process
from benchmarks.write_rows import check_loaded
from ignite_tf_magic.client.client import connect
from ignite_tf_magic.protocol.encode import RowEncoder
from ignite_tf_magic.settings.options import ConnectOptions, Endpoint


def pyignite_objects(case: Case, columns: dict[str, Any]) -> dict[Any, Any]:
    """Make pyignite objects from columns."""
    schema = OrderedDict(pixels=ByteArrayObject, label=IntObject)
    row_type = GenericObjectMeta(type_name(case), (), {}, schema=schema)
    cells = zip(columns["pixels"], columns["label"].tolist(), strict=True)
    return {
        (key, LongObject): row_type(pixels=pixels.tobytes(), label=label)
        for key, (pixels, label) in enumerate(cells)
    }


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    case = mnist(task["num_rows"])
    columns, keys = columns_of(case, 0, case.num_rows), np.arange(case.num_rows)
    rows = pyignite_objects(case, columns)
    sample = dict(islice(rows.items(), task["sampled_rows"]))
    writer = Client()
    with (
        connect(ConnectOptions((Endpoint(task["host"], task["port"]),))) as client,
        writer.connect(task["host"], task["port"]),
    ):
        config = config_of(
            case, task["cache"], RowEncoder(type_name(case), columns, keys), with_sql=task["with_sql"]
        )

        def write(wanted: dict[Any, Any], batch_rows: int, watch: Stopwatch) -> int:
            cache = client.create_cache(config)
            try:
                target, items = writer.get_cache(cache.name), iter(wanted.items())
                with watch:
                    while batch := dict(islice(items, batch_rows)):
                        target.put_all(batch)
                return check_loaded(cache, columns) if wanted is rows else cache.size()
            finally:
                client.destroy_cache(cache.name)

        def trial(batch_rows: int) -> float:
            return repeat(lambda watch: write(sample, batch_rows, watch), len(sample), 0).rows_per_s

        batch_rows = best_of(task["batches"], trial)
        serve(lambda watch: write(rows, batch_rows, watch), case.num_rows, {"batch_rows": batch_rows})


if __name__ == "__main__":
    main(task_of_this_process())
