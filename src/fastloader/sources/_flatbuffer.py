"""Just enough of FlatBuffers to read Arrow's headers, every position checked."""

import struct

__all__ = ["FlatTable", "HeaderError"]

_CUT_OFF = "a header is cut off"


class HeaderError(Exception):
    """A header makes no sense; who knows the file says it."""


class FlatTable:
    """A table of a flatbuffer: numbered fields, each of which may be missing.

    References:
        FlatBuffers internals, https://flatbuffers.dev/internals/.
    """

    __slots__ = ("_distances", "content", "position")

    def __init__(self, content: bytes, position: int) -> None:
        """Read where the fields lie.

        Args:
            content: The whole buffer.
            position: Where the table starts.

        Raises:
            HeaderError: If that lies outside the buffer.
        """
        self.content = content
        self.position = position
        fields = position - _unpack(content, "<i", position)
        num_fields = max(0, _unpack(content, "<H", fields) - 4) // 2
        if fields + 4 + 2 * num_fields > len(content):
            raise HeaderError(_CUT_OFF)
        self._distances = struct.unpack_from(f"<{num_fields}H", content, fields + 4)

    @classmethod
    def root(cls, content: bytes) -> "FlatTable":
        """Return the outermost table.

        Raises:
            HeaderError: If it is cut off.
        """
        return cls(content, _unpack(content, "<I", 0))

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Return a scalar.

        Args:
            field: Number of the field.
            kind: Its format as `struct` calls it, for instance ``"<q"``.
            default: For a field that is missing.

        Raises:
            HeaderError: If it lies outside the buffer.
        """
        at = self.place(field)
        return default if at is None else _unpack(self.content, kind, at)

    def table(self, field: int) -> "FlatTable | None":
        """Return a table that a field refers to, or None.

        Raises:
            HeaderError: If it lies outside the buffer.
        """
        at = self.place(field)
        return None if at is None else FlatTable(self.content, self._follow(at))

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Return where the items of a vector start, and how many there are.

        Args:
            field: Number of the field.
            item_bytes: Length of an item.

        Raises:
            HeaderError: If they do not all lie inside the buffer.
        """
        at = self.place(field)
        if at is None:
            return 0, 0
        start = self._follow(at)
        count = _unpack(self.content, "<I", start)
        if start + 4 + count * item_bytes > len(self.content):
            raise HeaderError(_CUT_OFF)
        return start + 4, count

    def place(self, field: int) -> int | None:
        """Return where a field lies; None if it is missing."""
        distance = self._distances[field] if field < len(self._distances) else 0
        return self.position + distance if distance else None

    def _follow(self, at: int) -> int:
        return at + _unpack(self.content, "<I", at)


def _unpack(content: bytes, kind: str, at: int) -> int:
    try:
        if at >= 0:
            return int(struct.unpack_from(kind, content, at)[0])
    except struct.error:
        pass
    raise HeaderError(_CUT_OFF)
