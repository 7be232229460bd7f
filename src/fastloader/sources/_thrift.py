"""Just enough of Thrift's compact protocol to read and write the headers of Parquet."""

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ["Long", "ThriftError", "ThriftFields", "encode_fields", "read_fields"]

ThriftFields: TypeAlias = dict[int, Any]
"""Values by the number of their field: bool, int, float, bytes, lists and fields of these."""

_MAX_DEPTH = 8
_MAX_VARINT_BITS = 70
_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12
"""Types by number; others that are read only stand where they are read."""


class Long(int):
    """A number of 64 bits, which readers tell from one of 32."""

    __slots__ = ()


_KINDS = {Long: _I64, int: _I32, bytes: _BINARY, dict: _STRUCT, list: _LIST}
"""Of what is written."""


class ThriftError(Exception):
    """A header makes no sense or is cut off."""


def read_fields(content: bytes, at: int = 0) -> tuple[ThriftFields, int]:
    """Return the fields of a struct and the position after it.

    Args:
        content: What holds it.
        at: Where it starts.

    Raises:
        ThriftError: If it makes no sense or goes on beyond the end of `content`.

    References:
        Thrift compact protocol,
        https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
    """
    reader = _Reader(content, at)
    try:
        return reader.fields(0), reader.at
    except (IndexError, struct.error) as error:
        raise ThriftError("it is cut off") from error


class _Reader:
    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self.at = at

    def fields(self, depth: int) -> ThriftFields:
        """Return the fields of a struct.

        Raises:
            ThriftError: If structs lie in each other too deep.
        """
        if depth > _MAX_DEPTH:
            raise ThriftError("its structs lie in each other without end")
        found: ThriftFields = {}
        number = 0
        while (head := self._byte()) != 0:
            step = head >> 4
            number = number + step if step else self._zigzag()
            found[number] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        """Return one value.

        Raises:
            ThriftError: If its type is unknown.
        """
        match kind:
            case 1 | 2:  # of a field, truth is its type
                value: Any = kind == _TRUE
            case 3:
                value = self._byte()
            case 4 | 5 | 6:
                value = self._zigzag()
            case 7:
                value = struct.unpack("<d", self._bytes(8))[0]
            case 8:
                value = self._bytes(self._varint())
            case 9 | 10:
                value = self._list(depth + 1)
            case 12:
                value = self.fields(depth + 1)
            case _:
                raise ThriftError(f"it has a value of the unknown type {kind}")
        return value

    def _list(self, depth: int) -> list[Any]:
        """Return the items of a list.

        Raises:
            ThriftError: If lists lie in each other too deep.
        """
        if depth > _MAX_DEPTH:
            raise ThriftError("its lists lie in each other without end")
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._varint()
        return [self._item(head & 15, depth) for _ in range(self._checked(count))]

    def _item(self, kind: int, depth: int) -> Any:
        # Of a list, truth values are bytes; of a field they are part of its type.
        return self._byte() == _TRUE if kind in {_TRUE, _FALSE} else self._value(kind, depth)

    def _byte(self) -> int:
        value = self._content[self.at]
        self.at += 1
        return value

    def _bytes(self, length: int) -> bytes:
        start = self.at
        self.at += self._checked(length)
        return self._content[start : self.at]

    def _checked(self, count: int) -> int:
        """Return a number of bytes, or of items of one byte or more, that are there.

        Raises:
            ThriftError: If they are not.
        """
        if count > len(self._content) - self.at:
            raise ThriftError("it is cut off")
        return count

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        """Return a whole number of any length.

        Raises:
            ThriftError: If it has no end.
        """
        value = 0
        for shift in range(0, _MAX_VARINT_BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ThriftError("it has a number without end")


def encode_fields(fields: ThriftFields) -> bytes:
    """Return a struct as bytes.

    Args:
        fields: Values by ascending number, each at most 15 more than the one before: int of 32
            bits, `Long`, bytes, fields, or lists of one kind of these that are not empty.
    """
    encoded = bytearray()
    last = 0
    for number, value in fields.items():
        encoded.append((number - last) << 4 | _KINDS[type(value)])
        encoded += _encode(value)
        last = number
    encoded.append(0)
    return bytes(encoded)


def _encode(value: Any) -> bytes:
    if isinstance(value, int):
        return _encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if isinstance(value, bytes):
        return _encode_varint(len(value)) + value
    return encode_fields(value) if isinstance(value, dict) else _encode_list(value)


def _encode_list(values: Sequence[Any]) -> bytes:
    kind, count = _KINDS[type(values[0])], len(values)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind])
    length = b"" if count < 15 else _encode_varint(count)
    return head + length + b"".join(map(_encode, values))


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
