"""Numbers of the thin protocol: operations, type codes, statuses, flags, features.

Source: Ignite documentation, "Binary Client Protocol", and the behaviour of Ignite 2.17.0.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

PROTOCOL_VERSION = (1, 7, 0)
CLIENT_CODE = 2
HANDSHAKE_CODE = 1


class Operation(IntEnum):
    """Operation codes of the requests this package sends."""

    RESOURCE_CLOSE = 0
    HEARTBEAT = 1
    CACHE_GET = 1000
    CACHE_PUT = 1001
    CACHE_PUT_IF_ABSENT = 1002
    CACHE_GET_ALL = 1003
    CACHE_PUT_ALL = 1004
    CACHE_REPLACE_IF_EQUALS = 1010
    CACHE_CONTAINS_KEY = 1011
    CACHE_CONTAINS_KEYS = 1012
    CACHE_REMOVE_KEY = 1016
    CACHE_REMOVE_KEYS = 1018
    CACHE_GET_SIZE = 1020
    CACHE_GET_NAMES = 1050
    CACHE_CREATE_WITH_CONFIGURATION = 1053
    CACHE_GET_OR_CREATE_WITH_CONFIGURATION = 1054
    CACHE_GET_CONFIGURATION = 1055
    CACHE_DESTROY = 1056
    CACHE_PARTITIONS = 1101
    QUERY_SCAN = 2000
    QUERY_SCAN_GET_PAGE = 2001
    QUERY_SQL_FIELDS = 2004
    QUERY_SQL_FIELDS_GET_PAGE = 2005
    QUERY_CONTINUOUS = 2006
    QUERY_CONTINUOUS_EVENT_NOTIFICATION = 2007
    GET_BINARY_TYPE_NAME = 3000
    GET_BINARY_TYPE = 3002
    PUT_BINARY_TYPE = 3003
    TX_START = 4000
    TX_END = 4001
    CLUSTER_GET_STATE = 5000
    CLUSTER_CHANGE_STATE = 5001
    CLUSTER_GET_NODE_ENDPOINTS = 5102


class TypeCode(IntEnum):
    """The byte in front of every value."""

    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    CHAR = 7
    BOOL = 8
    STRING = 9
    UUID = 10
    DATE = 11
    BYTE_ARRAY = 12
    SHORT_ARRAY = 13
    INT_ARRAY = 14
    LONG_ARRAY = 15
    FLOAT_ARRAY = 16
    DOUBLE_ARRAY = 17
    CHAR_ARRAY = 18
    BOOL_ARRAY = 19
    STRING_ARRAY = 20
    UUID_ARRAY = 21
    DATE_ARRAY = 22
    OBJECT_ARRAY = 23
    COLLECTION = 24
    MAP = 25
    WRAPPED_OBJECT = 27
    ENUM = 28
    ENUM_ARRAY = 29
    DECIMAL = 30
    DECIMAL_ARRAY = 31
    CLASS = 32
    TIMESTAMP = 33
    TIMESTAMP_ARRAY = 34
    TIME = 36
    TIME_ARRAY = 37
    BINARY_ENUM = 38
    NULL = 101
    # A reference to an earlier value of the message: how many bytes before.
    HANDLE = 102
    BINARY_OBJECT = 103
    # Java serialisation by Ignite's optimised marshaller; also the form of SQL's DATE.
    OPTIMIZED = 254


class Status(IntEnum):
    """Statuses of an error response that the client reacts to."""

    SUCCESS = 0
    FAILED = 1
    NODE_IN_RECOVERY_MODE = 11
    CACHE_DOES_NOT_EXIST = 1000
    CACHE_EXISTS = 1001
    RESOURCE_DOES_NOT_EXIST = 1011
    SECURITY_VIOLATION = 1012
    AUTH_FAILED = 2000


class ResponseFlag(IntFlag):
    """Flags in front of a response's payload."""

    ERROR = 1
    TOPOLOGY_CHANGED = 2
    NOTIFICATION = 4


class Feature(IntEnum):
    """Bits of the feature mask exchanged in the handshake."""

    CLUSTER_STATES = 2
    NODE_ENDPOINTS = 3
    QUERY_PARTITIONS = 7
    HEARTBEAT = 11
    ALL_AFFINITY_MAPPINGS = 13


class ObjectFlag(IntFlag):
    """Flags in the header of a binary object."""

    USER_TYPE = 0x01
    HAS_SCHEMA = 0x02
    HAS_RAW_DATA = 0x04
    OFFSET_ONE_BYTE = 0x08
    OFFSET_TWO_BYTES = 0x10
    COMPACT_FOOTER = 0x20


class PeekMode(IntEnum):
    """Which copies a cache size counts."""

    ALL = 0
    NEAR = 1
    PRIMARY = 2
    BACKUP = 3


class EventType(IntEnum):
    """What happened to a row, in an event of a continuous query."""

    CREATED = 0
    UPDATED = 1
    REMOVED = 2
    EXPIRED = 3


class Concurrency(IntEnum):
    """When a transaction locks the rows it touches: when it commits, or at once."""

    OPTIMISTIC = 0
    PESSIMISTIC = 1


class Isolation(IntEnum):
    """Which changes of other transactions a transaction sees."""

    READ_COMMITTED = 0
    REPEATABLE_READ = 1
    SERIALIZABLE = 2


class CacheMode(IntEnum):
    """Whether each node holds all rows or only those of its partitions."""

    REPLICATED = 1
    PARTITIONED = 2


class AtomicityMode(IntEnum):
    """Whether a cache takes part in transactions."""

    TRANSACTIONAL = 0
    ATOMIC = 1


class WriteSyncMode(IntEnum):
    """How many copies a write waits for."""

    FULL_SYNC = 0
    FULL_ASYNC = 1
    PRIMARY_SYNC = 2


# The names of SQL column types in a cache's configuration.
JAVA_TYPES = {
    TypeCode.BYTE: "java.lang.Byte",
    TypeCode.SHORT: "java.lang.Short",
    TypeCode.INT: "java.lang.Integer",
    TypeCode.LONG: "java.lang.Long",
    TypeCode.FLOAT: "java.lang.Float",
    TypeCode.DOUBLE: "java.lang.Double",
    TypeCode.BOOL: "java.lang.Boolean",
    TypeCode.CHAR: "java.lang.Character",
    TypeCode.STRING: "java.lang.String",
    TypeCode.UUID: "java.util.UUID",
    TypeCode.DATE: "java.util.Date",
    TypeCode.OPTIMIZED: "java.sql.Date",
    TypeCode.TIME: "java.sql.Time",
    TypeCode.TIMESTAMP: "java.sql.Timestamp",
    TypeCode.DECIMAL: "java.math.BigDecimal",
    TypeCode.BYTE_ARRAY: "[B",
    TypeCode.SHORT_ARRAY: "[S",
    TypeCode.INT_ARRAY: "[I",
    TypeCode.LONG_ARRAY: "[J",
    TypeCode.FLOAT_ARRAY: "[F",
    TypeCode.DOUBLE_ARRAY: "[D",
    TypeCode.BOOL_ARRAY: "[Z",
}
CODE_OF_JAVA_TYPE = {name: code for code, name in JAVA_TYPES.items()}
