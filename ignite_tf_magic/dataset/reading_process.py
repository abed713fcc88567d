"""Chooses the process that reads a dataset's rows.

It is the process that makes the dataset, or the one that runs the dataset's operations.
"""

from __future__ import annotations

import os
import warnings
from enum import Enum

import tensorflow as tf

from ignite_tf_magic.dataset.graph_devices import device_asked_for, is_for_another_task, own_task
from ignite_tf_magic.dataset.tf_private import own_address_space, server_def
from ignite_tf_magic.errors import ConfigError


class ReadBy(str, Enum):
    """Who reads the rows.

    CALLER is a Python generator of the process that makes the dataset. WORKER is any process, by record files.
    """

    CALLER = "caller"
    WORKER = "worker"


def reading_process(asked: str | None) -> ReadBy:
    """Return the requested choice, or else WORKER if operations may run in another process.

    TensorFlow runs a generator in the process that made it, even if the dataset was requested on another device. It
    does so silently: measured with tf.device and with ClusterCoordinator.

    Raises:
        ConfigError: `asked` is not a choice, or requests a generator for another process.
    """
    if asked not in (None, *(choice.value for choice in ReadBy)):
        raise ConfigError(f"read_by={asked!r}: choose 'worker' or 'caller'")
    if asked is None:
        return ReadBy.WORKER if is_graph_mode() or is_connected() else ReadBy.CALLER
    if asked == ReadBy.CALLER.value and is_connected() and not _runs_here():
        raise ConfigError(
            "read_by='caller', but this dataset is made for another process (tf.device, or a function that "
            "a worker runs), and rows read here would be sent there: leave read_by out, and call "
            "ignite_tf_magic.register() in that process"
        )
    return ReadBy(asked)


def is_graph_mode() -> bool:
    """Return whether this is a graph for a tf.compat.v1 session, which may run it in any process."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def is_connected() -> bool:
    """Return whether this process sends work to other TensorFlow servers.

    Workers of one strategy do not count.
    """
    return server_def() is not None


def may_be_read_here_too() -> bool:
    """Return whether this process may also read a dataset that is meant for workers.

    This is the chief of a `fit` that hands out steps. The chief samples rows, and validates with all of them; each
    worker reads its own rows of the same dataset.
    """
    own = own_task()
    return os.environ.get("IGNITE_TF_STRATEGY") == "async" and own is not None and own[0] == "chief"


def check_secrets_stay() -> None:
    """Raise if another process would need a password or certificate passed to a dataset here.

    Raises:
        ConfigError: Another process would need it. Anybody can see a graph, so graphs carry no secrets.
    """
    if is_connected() or is_for_another_task():
        where = device_asked_for() if not tf.executing_eagerly() else "another process"
        raise ConfigError(
            f"the rows are to be read by {where}, and the password or certificate given to IgniteDataset cannot go "
            "there: a graph keeps no secrets. Leave them out, and have both processes find them in a file that "
            "IGNITE_DATASET_CREDENTIALS_FILE names, or in their configuration; workers of a run have that already"
        )


_told: set[str] = set()


def warn_if_connected() -> None:
    """Warn, once, if this process reads a dataset that it made before it connected to other servers.

    Such a dataset yields this process's rows even if it was requested on another device.
    """
    if is_connected() and not _told:
        _told.add("connected")
        warnings.warn(
            "an IgniteDataset that was made before this process was connected to other TensorFlow servers is read by "
            "this process, whatever tf.device says: these are its rows, not those of the device. Make it after "
            "connecting, in the `with tf.device(...)` of its iterator; read_by='caller' silences this",
            stacklevel=2,
        )


def _runs_here() -> bool:
    if not tf.executing_eagerly():
        return False
    return str(tf.constant(0).device).startswith(own_address_space() + "/")
