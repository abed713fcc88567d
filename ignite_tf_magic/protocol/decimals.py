"""Decimal numbers on the wire: a scale, then all digits as one integer whose first bit is the sign."""

from __future__ import annotations

import decimal

from ignite_tf_magic.errors import LocalProtocolError, RemoteProtocolError
from ignite_tf_magic.protocol.buffer import Writer
from ignite_tf_magic.protocol.ops import TypeCode


def write_decimal(writer: Writer, value: decimal.Decimal) -> None:
    """Append a decimal with its type code.

    Raises:
        LocalProtocolError: The decimal is infinite or NaN.
    """
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise LocalProtocolError(f"the decimal {value} is not a number; give a float, or None")
    number = int("".join(map(str, digits)))
    magnitude = bytearray(number.to_bytes(number.bit_length() // 8 + 1, "big"))
    magnitude[0] |= sign << 7
    writer.int8(TypeCode.DECIMAL).int32(-exponent).int32(len(magnitude)).raw(magnitude)


def decimal_from_wire(scale: int, magnitude: bytes) -> decimal.Decimal:
    """Build a decimal from its scale and big-endian magnitude, whose first bit is the sign."""
    if not magnitude or not -100_000 < scale < 100_000:
        raise RemoteProtocolError(f"corrupted decimal: scale {scale}, {len(magnitude)} bytes")
    number = int.from_bytes(bytes([magnitude[0] & 0x7F]) + magnitude[1:], "big")
    digits = decimal.Decimal(number).as_tuple().digits
    return decimal.Decimal((magnitude[0] >> 7, digits, -scale))


def decimal_hash(value: decimal.Decimal) -> int:
    """Hash a decimal as java.math.BigDecimal does: 31 times the hash of its digits, plus its scale."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise LocalProtocolError(f"the decimal {value} is not a number, so it cannot be a key")
    number, hashed = int("".join(map(str, digits))), 0
    for shift in range((max(number.bit_length() - 1, 0) // 32) * 32, -1, -32):
        hashed = (31 * hashed + (number >> shift & 0xFFFFFFFF)) & 0xFFFFFFFF
    found = (31 * (-hashed if sign else hashed) - exponent) & 0xFFFFFFFF
    return found - (1 << 32) if found & 0x80000000 else found
