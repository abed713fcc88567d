"""Rows for tests."""

from __future__ import annotations

from ignite_tf_magic.protocol import key_value
from ignite_tf_magic.protocol.affinity import encoded


def put_all(cache, rows):
    """Write pairs of key and value with plain PUT_ALLs."""
    for first in range(0, len(rows), 1000):
        part = rows[first : first + 1000]
        data = b"".join(encoded(key) + encoded(value) for key, value in part)
        request = key_value.put_encoded(cache.cache_id, len(part), data)
        cache.client.router.call(request, lambda payload: None)
