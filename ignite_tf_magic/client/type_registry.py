"""The binary types of a cluster: what it knows of them, and telling it new ones."""

from __future__ import annotations

import threading
from typing import Any

from ignite_tf_magic.client.router import Router
from ignite_tf_magic.protocol import messages
from ignite_tf_magic.protocol.objects import BinaryObject, BinaryType, binary_type_of, code_of


class TypeRegistry:
    """Binary types, remembered once they were asked for. Thread-safe."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._known: dict[int, BinaryType] = {}
        self._lock = threading.Lock()

    def find(self, type_id: int, *, refresh: bool = False) -> BinaryType | None:
        """Return what the cluster knows of a binary type, from memory unless `refresh`."""
        with self._lock:
            found = None if refresh else self._known.get(type_id)
        if found is None:
            found = self._router.call(messages.get_binary_type(type_id), messages.parse_binary_type)
            if found is not None:
                with self._lock:
                    self._known[type_id] = found
        return found

    def put(self, binary_type: BinaryType) -> None:
        """Tell the cluster a binary type; it is merged with what the cluster knows."""
        self._router.call(messages.put_binary_type(binary_type), messages.parse_nothing)
        with self._lock:  # it has more schemas now than are remembered
            self._known.pop(binary_type.type_id, None)

    def announce(self, value: Any) -> None:
        """Tell the cluster the type of a binary object that is about to be written, once."""
        if not isinstance(value, BinaryObject):
            return
        for item in value.fields.values():
            self.announce(item)
        mine = binary_type_of(value.type_name, {name: code_of(item) for name, item in value.fields.items()})
        known = self.find(mine.type_id)
        if known is None or not mine.schemas.keys() <= known.schemas.keys():
            self.put(mine)
            self.find(mine.type_id, refresh=True)
