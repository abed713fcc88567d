"""Limits the tasks that a TensorFlow 1 session connects to, in scripts that run once for each task."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from ignite_tf_magic.training.task import task


def reach_own_devices() -> None:
    """Make sessions connect only to their own task and the parameter servers, unless they are configured otherwise.

    By default a session opens only when every task of the cluster answers. A worker that starts after another one has
    finished would wait forever. Estimators set the same limit.
    """
    own = task()
    original = tf.compat.v1.Session.__init__

    @functools.wraps(original)
    def opened(session: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        if target and not (config is not None and config.device_filters):
            chosen = tf.compat.v1.ConfigProto()
            chosen.CopyFrom(config or chosen)
            chosen.device_filters.extend(("/job:ps", f"/job:{own.kind}/task:{own.index}"))
            config = chosen
        original(session, target, graph, config)

    tf.compat.v1.Session.__init__ = opened
