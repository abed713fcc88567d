"""`tensorflow_io.ignite`: an `IgniteDataset` whose arguments are in the order of tensorflow-io's.

Importing this module gives every dataset of the process the methods of TensorFlow 1, which that class had.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ignite_tf_magic
from ignite_tf_magic.contrib.version_1 import add_methods_of_version_1

__all__ = ["IgniteDataset"]

add_methods_of_version_1()


class TensorFlowIoDataset(ignite_tf_magic.IgniteDataset):
    """Rows of an Ignite cache, as `ignite_tf_magic.IgniteDataset`, with arguments in the order of tensorflow-io.

    Args:
        cache_name: As in `ignite_tf_magic.IgniteDataset`; so are the others.
        host: As there.
        port: As there.
        schema_host: As there.
        schema_port: As there.
        local: As there.
        part: As there.
        page_size: As there.
        username: As there.
        password: As there.
        certfile: As there.
        keyfile: As there.
        cert_password: As there.
        **options: Arguments of `ignite_tf_magic.IgniteDataset` that tensorflow-io did not have.
    """

    def __init__(
        self,
        cache_name: str,
        host: str | None = None,
        port: int | None = None,
        schema_host: str | None = None,
        schema_port: int | None = None,
        local: bool = False,
        part: int | str | Iterable[int] | None = None,
        page_size: int | None = None,
        username: str | None = None,
        password: str | None = None,
        certfile: str | None = None,
        keyfile: str | None = None,
        cert_password: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            cache_name,
            host,
            port,
            local,
            part,
            page_size,
            username,
            password,
            certfile,
            keyfile,
            cert_password,
            schema_host=schema_host,
            schema_port=schema_port,
            **options,
        )


IgniteDataset = TensorFlowIoDataset
