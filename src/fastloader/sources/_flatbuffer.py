"""Just enough of FlatBuffers to read Arrow's headers, every position checked."""

import struct
from dataclasses import dataclass

__all__ = ["FlatTable", "HeaderError"]


class HeaderError(Exception):
    """A header makes no sense; who knows the file says it."""


@dataclass(frozen=True, slots=True)
class FlatTable:
    """A table of a flatbuffer: numbered fields, each of which may be missing.

    References:
        FlatBuffers internals, https://flatbuffers.dev/internals/.
    """

    content: bytes
    """The whole buffer."""
    position: int
    """Where the table starts."""

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
        at = self._place(field)
        return default if at is None else _unpack(self.content, kind, at)

    def table(self, field: int) -> "FlatTable | None":
        """Return a table that a field refers to, or None.

        Raises:
            HeaderError: If it lies outside the buffer.
        """
        at = self._place(field)
        return None if at is None else FlatTable(self.content, self._follow(at))

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Return where the items of a vector start, and how many there are.

        Args:
            field: Number of the field.
            item_bytes: Length of an item.

        Raises:
            HeaderError: If they do not all lie inside the buffer.
        """
        at = self._place(field)
        if at is None:
            return 0, 0
        start = self._follow(at)
        count = _unpack(self.content, "<I", start)
        if start + 4 + count * item_bytes > len(self.content):
            raise HeaderError("a header is cut off")
        return start + 4, count

    def _follow(self, at: int) -> int:
        return at + _unpack(self.content, "<I", at)

    def _place(self, field: int) -> int | None:
        """Return where a field lies, by the table that gives the fields' distances."""
        fields = self.position - _unpack(self.content, "<i", self.position)
        if 4 + 2 * field >= _unpack(self.content, "<H", fields):
            return None
        distance = _unpack(self.content, "<H", fields + 4 + 2 * field)
        return self.position + distance if distance else None


def _unpack(content: bytes, kind: str, at: int) -> int:
    try:
        if at >= 0:
            return int(struct.unpack_from(kind, content, at)[0])
    except struct.error:
        pass
    raise HeaderError("a header is cut off")
