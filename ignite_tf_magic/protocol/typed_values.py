"""Python values that keep their Ignite type: a value that was read is written back unchanged.

In every other respect they are plain Python values: an `Int` is an int, a `Timestamp` a datetime, a `TypedMap` a list
of pairs. Ignite's long, double, boolean, String, UUID, BigDecimal and byte[] need no such class, because the plain
Python types are written as these. Arrays of numbers are NumPy arrays.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

from ignite_tf_magic.protocol.ops import TypeCode
from ignite_tf_magic.protocol.times import DAY_MS, instant_of, time_of_sql, to_datetime

D = TypeVar("D", bound=dt.datetime)
_OF_CLASS_OBJECT = -1


class _Integer(int):
    """An integer of fewer than 64 bits."""

    __slots__ = ()
    code: ClassVar[TypeCode]
    num_bytes: ClassVar[int]


class Byte(_Integer):
    """Java's byte."""

    __slots__ = ()
    code, num_bytes = TypeCode.BYTE, 1


class Short(_Integer):
    """Java's short."""

    __slots__ = ()
    code, num_bytes = TypeCode.SHORT, 2


class Int(_Integer):
    """Java's int."""

    __slots__ = ()
    code, num_bytes = TypeCode.INT, 4


class Char(_Integer):
    """Java's char: the number of a UTF-16 unit; a character may need two. `chr` converts it to text."""

    __slots__ = ()
    code, num_bytes = TypeCode.CHAR, 2


INTEGERS: dict[int, type[_Integer]] = {kind.code: kind for kind in (Byte, Short, Int, Char)}


class Float(float):
    """Java's float, widened to a double without loss."""

    __slots__ = ()


class Timestamp(dt.datetime):
    """java.sql.Timestamp: an instant in UTC, without a zone.

    Attributes:
        nanosecond: Nanoseconds within the microsecond, 0 to 999. Arithmetic and `replace` lose them.
    """

    nanosecond = 0

    @classmethod
    def of(cls, millis: int, nanos: int) -> Timestamp:
        """Make an instant from milliseconds since 1970 and nanoseconds within the millisecond.

        Raises:
            RemoteProtocolError: The instant is outside of the years 1 to 9999.
        """
        made = _copied(cls, to_datetime(millis, nanos))
        made.nanosecond = nanos % 1000
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Keep the nanoseconds in a pickle and in a copy."""
        return Timestamp.of, instant_of(self)


class UtilDate(dt.datetime):
    """java.util.Date: an instant in UTC to the millisecond, without a zone."""

    __slots__ = ()

    @classmethod
    def of(cls, millis: int) -> UtilDate:
        """Make an instant from milliseconds since 1970. Raises the errors of `Timestamp.of`."""
        return _copied(cls, to_datetime(millis, 0))


class SqlDate(dt.datetime):
    """java.sql.Date: midnight in the zone of the Java process that made it, as an instant in UTC without a zone."""

    __slots__ = ()

    @classmethod
    def of(cls, millis: int) -> SqlDate:
        """Make an instant from milliseconds since 1970. Raises the errors of `Timestamp.of`."""
        return _copied(cls, to_datetime(millis, 0))


class JavaTime(dt.time):
    """A java.sql.Time on another day than 1 January 1970 in UTC, as Java makes it in zones east of UTC.

    Attributes:
        millis: Milliseconds since 1970.
    """

    __slots__ = ("millis",)
    millis: int

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Keep the day in a pickle and in a copy."""
        return time_of, (self.millis,)


def time_of(millis: int) -> dt.time:
    """Return the time of day in UTC from milliseconds since 1970, as a `JavaTime` if they are on another day."""
    plain = time_of_sql(millis)
    if 0 <= millis < DAY_MS:
        return plain
    made = JavaTime(plain.hour, plain.minute, plain.second, plain.microsecond)
    made.millis = millis
    return made


def _copied(kind: type[D], value: dt.datetime) -> D:
    return kind(
        *(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    )


class EnumValue(int):
    """A value of a Java enum, as its ordinal.

    Attributes:
        type_id: Id of the enum's type; 0 if the cluster has none, and `class_name` identifies the class.
        code: Type code, ENUM or BINARY_ENUM.
        type_name: Name of the type; None if the cluster does not know it.
        name: Name of the value; None if the cluster does not know it.
    """

    type_id: int
    code: int
    class_name: str | None
    type_name: str | None
    name: str | None

    @classmethod
    def of(
        cls,
        ordinal: int,
        type_id: int,
        code: int = TypeCode.ENUM,
        *,
        class_name: str | None = None,
        type_name: str | None = None,
        name: str | None = None,
    ) -> EnumValue:
        """Make a value of an enum."""
        made = cls(ordinal)
        made.type_id, made.code = type_id, code
        made.class_name, made.type_name, made.name = class_name, type_name, name
        return made

    def __reduce__(self) -> Any:
        """Keep the type in a pickle and in a copy."""
        return _enum_value, (int(self), self.type_id, self.code, self.class_name, self.type_name, self.name)

    def __repr__(self) -> str:
        """Name the value, as Python's own enums do."""
        return f"<{self.type_name or self.class_name or hex(self.type_id)}.{self.name or '?'}: {int(self)}>"


def _enum_value(
    ordinal: int, type_id: int, code: int, class_name: str | None, type_name: str | None, name: str | None
) -> EnumValue:
    return EnumValue.of(ordinal, type_id, code, class_name=class_name, type_name=type_name, name=name)


class TypedArray(list[Any]):
    """An array of objects: String[], UUID[], Object[], an array of an enum, ...

    Attributes:
        code: Type code of the array.
        type_id: Type id of the items, for arrays of objects and enums. -1 is Object; with 0, see `class_name`.
    """

    def __init__(
        self,
        items: Iterable[Any],
        code: int,
        type_id: int = _OF_CLASS_OBJECT,
        class_name: str | None = None,
    ) -> None:
        super().__init__(items)
        self.code, self.type_id, self.class_name = code, type_id, class_name

    def __reduce__(self) -> Any:
        """Keep the type in a pickle and in a copy."""
        return TypedArray, (list(self), self.code, self.type_id, self.class_name)


class TypedCollection(list[Any]):
    """A java.util.Collection, in its own order.

    Attributes:
        kind: The kind of collection, a key of `COLLECTIONS`.
    """

    def __init__(self, items: Iterable[Any], kind: int) -> None:
        super().__init__(items)
        self.kind = kind

    def __reduce__(self) -> Any:
        """Keep the kind in a pickle and in a copy."""
        return TypedCollection, (list(self), self.kind)


class TypedMap(list[tuple[Any, Any]]):
    """A java.util.Map as a list of pairs, because keys may be lists and objects. `dict` converts it if they are not.

    Attributes:
        kind: The kind of map, a key of `MAPS`.
    """

    def __init__(self, pairs: Iterable[tuple[Any, Any]], kind: int) -> None:
        super().__init__(pairs)
        self.kind = kind

    def __reduce__(self) -> Any:
        """Keep the kind in a pickle and in a copy."""
        return TypedMap, (list(self), self.kind)


COLLECTIONS = {
    -1: "set",
    0: "collection",
    1: "ArrayList",
    2: "LinkedList",
    3: "HashSet",
    4: "LinkedHashSet",
    5: "SingletonList",
}
MAPS = {1: "HashMap", 2: "LinkedHashMap"}


class JavaSerialized(bytes):
    """A value serialised by Java, which only Java can decode. It is written back unchanged."""

    __slots__ = ()

    @property
    def class_id(self) -> int:
        """Id of its class, for `client.type_registry`; 0 if the bytes are too few."""
        return int.from_bytes(self[1:5], "little", signed=True) if len(self) >= 5 else 0


class JavaClass(str):
    """The name of a java.lang.Class.

    Attributes:
        type_id: Id of its type; 0 if only the name is known.
    """

    type_id: int

    @classmethod
    def of(cls, name: str, type_id: int) -> JavaClass:
        """Make a class with this name and type id."""
        made = cls(name)
        made.type_id = type_id
        return made
