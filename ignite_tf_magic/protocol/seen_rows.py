"""Collects the type codes, lengths and nulls of each field of sampled rows; `layout_finder` makes a layout of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ignite_tf_magic.protocol.buffer import Reader
from ignite_tf_magic.protocol.messages import QueryEntity
from ignite_tf_magic.protocol.objects import (
    ARRAYS,
    BinaryType,
    FindType,
    binary_type_of,
    name_id,
    read_header,
    skip_value,
)
from ignite_tf_magic.protocol.ops import CODE_OF_JAVA_TYPE, TypeCode
from ignite_tf_magic.protocol.times import SQL_DATE_HEAD

SERIALISED = -TypeCode.OPTIMIZED  # serialised by Java, but not a java.sql.Date
# Type codes of lists whose items each have a type code -> that code, or None if the list's type does not determine it.
ITEMS_OF_LISTS = {
    TypeCode.STRING_ARRAY: TypeCode.STRING,
    TypeCode.UUID_ARRAY: TypeCode.UUID,
    TypeCode.DATE_ARRAY: TypeCode.DATE,
    TypeCode.TIMESTAMP_ARRAY: TypeCode.TIMESTAMP,
    TypeCode.TIME_ARRAY: TypeCode.TIME,
    TypeCode.DECIMAL_ARRAY: TypeCode.DECIMAL,
    TypeCode.ENUM_ARRAY: None,
    TypeCode.OBJECT_ARRAY: None,
    TypeCode.COLLECTION: None,
    TypeCode.MAP: None,
}

_ITEMS_LOOKED_AT = 1000


@dataclass(slots=True)
class SeenField:
    """What was seen of one field: nulls, type codes, array lengths, types and fields of objects, types of enums.

    Attributes:
        unregistered: Ids of object types that the cluster does not know; the names of their fields are unknown.
    """

    has_null: bool = False

    codes: set[int] = field(default_factory=set)
    lengths: set[int] = field(default_factory=set)
    types: dict[int, BinaryType] = field(default_factory=dict)
    fields: dict[int, SeenField] = field(default_factory=dict)
    items: list[SeenField] = field(default_factory=list)
    enums: set[int] = field(default_factory=set)
    unregistered: set[int] = field(default_factory=set)

    def items_of(self, number: int) -> SeenField:
        """Return what was seen of the items of a list. In a map, number 0 is the keys and 1 the values."""
        self.items += [SeenField() for _ in range(number + 1 - len(self.items))]
        return self.items[number]


class SeenRows:
    """Examines sampled rows and collects what it sees of their fields.

    Attributes:
        key: What was seen of the keys.
        value: What was seen of the values.
        num_rows: Number of rows examined.

    Args:
        find_type: Returns the cluster's metadata of a binary type.
        cells: For rows with a sequence of cells instead of a value after the key: a type whose fields are the cells.
    """

    def __init__(self, find_type: FindType, cells: BinaryType | None = None) -> None:
        self._find_type = find_type
        self._cells = cells
        self.key, self.value = SeenField(), SeenField()
        self.num_rows = 0
        if cells:
            self.value.codes.add(TypeCode.BINARY_OBJECT)
            self.value.types[cells.type_id] = cells

    def add(self, rows: memoryview, num_rows: int) -> None:
        """Examine the rows of one page.

        Raises:
            RemoteProtocolError: The page is truncated or corrupted.
        """
        reader = Reader(rows)
        for _ in range(num_rows):
            self._look(reader, self.key)
            if self._cells is None:
                self._look(reader, self.value)
                continue
            for _, field_id in self._cells.fields.values():
                self._look(reader, self.value.fields.setdefault(field_id, SeenField()))
        self.num_rows += num_rows

    def declare(self, table: QueryEntity) -> bool:
        """Record what a SQL table declares of a cache without rows. Return whether it declares complete rows."""
        if any(column.java_type not in CODE_OF_JAVA_TYPE for column in table.fields):
            return False
        for seen, type_name in ((self.key, table.key_type), (self.value, table.value_type)):
            if type_name in CODE_OF_JAVA_TYPE:
                seen.codes.add(CODE_OF_JAVA_TYPE[type_name])
            elif (found := self._find_type(name_id(type_name))) and found.fields:
                seen.codes.add(TypeCode.BINARY_OBJECT)
                seen.types[found.type_id] = found
            else:
                return False
        return True

    def _look(self, reader: Reader, seen: SeenField) -> None:
        start = reader.position
        skip_value(reader)
        self._note(reader.view, start, seen)

    def _note(self, view: memoryview, start: int, seen: SeenField) -> None:
        code = view[start]
        if code == TypeCode.WRAPPED_OBJECT:
            reader = Reader(view, start + 1)
            data = reader.take(reader.count())
            self._note(data, reader.int32(), seen)
            return
        if code == TypeCode.NULL:
            seen.has_null = True
            return
        seen.codes.add(_code_at(view, start))
        if code in ARRAYS:
            seen.lengths.add(Reader(view, start + 1).int32())
        if code == TypeCode.BINARY_OBJECT:
            self._note_object(view, start, seen)
        elif code in ITEMS_OF_LISTS:
            self._note_items(Reader(view, start), seen)
        elif code in (TypeCode.ENUM, TypeCode.BINARY_ENUM):
            seen.enums.add(Reader(view, start + 1).int32())

    def _note_object(self, view: memoryview, start: int, seen: SeenField) -> None:
        header = read_header(Reader(view), start)
        binary_type = self._find_type(header.type_id)
        if binary_type is None:
            seen.unregistered.add(header.type_id)
            return
        seen.types[header.type_id] = binary_type
        body = view[start : start + header.length]
        there = header.field_offsets(body, binary_type)
        for field_id, offset in there:
            self._note(body, offset, seen.fields.setdefault(field_id, SeenField()))
        for field_id in {field_id for _, field_id in binary_type.fields.values()} - {
            each for each, _ in there
        }:
            seen.fields.setdefault(field_id, SeenField()).has_null = True

    def _note_items(self, reader: Reader, seen: SeenField) -> None:
        """Examine the first items of a list, or keys and values of a map. Move the reader past those examined."""
        code = reader.int8()
        if code in (TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY) and reader.int32() == 0:
            skip_value(reader)  # the name of the items' class
        size = reader.count()
        if code in (TypeCode.COLLECTION, TypeCode.MAP):
            reader.int8()
        seen.lengths.add(size)
        kinds = [seen.items_of(number) for number in range(2 if code == TypeCode.MAP else 1)]
        for _ in range(min(size, _ITEMS_LOOKED_AT)):
            for kind in kinds:
                self._look(reader, kind)


def with_declared(find_type: FindType, table: QueryEntity | None) -> FindType:
    """Return a `find_type` that adds the columns of a SQL table to types, because rows may not have set them yet."""
    if table is None:
        return find_type
    declared = {
        name_id(name): binary_type_of(name, _declared_codes(table, root))
        for root, name in (("key", table.key_type), ("val", table.value_type))
    }

    def find(type_id: int) -> BinaryType | None:
        known, own = find_type(type_id), declared.get(type_id)
        if known is None or own is None:
            return known or (own if own and own.fields else None)
        ids = {field_id for _, field_id in known.fields.values()}
        missing = {name: each for name, each in own.fields.items() if each[1] not in ids}
        return replace(known, fields={**known.fields, **missing}) if missing else known

    return find


def _declared_codes(table: QueryEntity, root: str) -> dict[str, int]:
    paths = {table.path_of(column): column.java_type for column in table.fields}
    return {
        path[1]: int(CODE_OF_JAVA_TYPE[java_type])
        for path, java_type in paths.items()
        if path and path[0] == root and len(path) == 2 and java_type in CODE_OF_JAVA_TYPE
    }


def _code_at(view: memoryview, start: int) -> int:
    code = view[start]
    return SERIALISED if code == TypeCode.OPTIMIZED and not _is_sql_date(view, start) else code


def _is_sql_date(view: memoryview, start: int) -> bool:
    reader = Reader(view, start + 1)
    return bytes(reader.take(reader.count())[: len(SQL_DATE_HEAD)]) == SQL_DATE_HEAD
