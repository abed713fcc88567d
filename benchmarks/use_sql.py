"""Variants of `sql`: reads all rows of a table, by this package in several forms, or by pyignite as a DataFrame."""

from __future__ import annotations

from typing import Any

from benchmarks.process import Stopwatch, serve, task_of_this_process


def main(task: dict[str, Any]) -> None:
    """Serve the harness."""
    statement = f"SELECT * FROM {task['table']}"
    if task["variant"] == "pyignite":
        _serve_pyignite(task, statement)
        return
    from ignite_tf_magic.client.sql import SqlClient
    from ignite_tf_magic.settings.options import ConnectOptions, Endpoint

    client = SqlClient(ConnectOptions((Endpoint(task["host"], task["port"]),)))

    def one_pass(watch: Stopwatch) -> int:
        with watch:
            result = client.query(statement)
            return len(
                result.rows if task["variant"] == "rows" else getattr(result, f"to_{task['variant']}")()
            )

    one_pass(Stopwatch())
    serve(one_pass, task["num_rows"], {})


def _serve_pyignite(task: dict[str, Any], statement: str) -> None:
    import pandas as pd
    from pyignite import Client

    client = Client()
    with client.connect(task["host"], task["port"]):

        def one_pass(watch: Stopwatch) -> int:
            with watch, client.sql(statement, page_size=1024, include_field_names=True) as cursor:
                names = next(cursor)
                return len(pd.DataFrame(list(cursor), columns=names))

        serve(one_pass, task["num_rows"], {})


if __name__ == "__main__":
    main(task_of_this_process())
