"""A replacement for `tensorflow_io.ignite`: an `IgniteDataset` with the argument order of tensorflow-io.

Importing this module adds the methods of TensorFlow 1, which tensorflow-io's class had, to all datasets of the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ignite_tf_magic
from ignite_tf_magic.contrib.version_1 import add_methods_of_version_1

__all__ = ["IgniteDataset"]

add_methods_of_version_1()


class TensorFlowIoDataset(ignite_tf_magic.IgniteDataset):
    """Rows of an Ignite cache, as `ignite_tf_magic.IgniteDataset`, with the argument order of tensorflow-io.

    Args:
        cache_name: As for `ignite_tf_magic.IgniteDataset`; so are the others.
        host: As for `IgniteDataset`.
        port: As for `IgniteDataset`.
        schema_host: As for `IgniteDataset`.
        schema_port: As for `IgniteDataset`.
        local: As for `IgniteDataset`.
        part: As for `IgniteDataset`.
        page_size: As for `IgniteDataset`.
        username: As for `IgniteDataset`.
        password: As for `IgniteDataset`.
        certfile: As for `IgniteDataset`.
        keyfile: As for `IgniteDataset`.
        cert_password: As for `IgniteDataset`.
        **options: Arguments of `ignite_tf_magic.IgniteDataset` that tensorflow-io does not have.
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
