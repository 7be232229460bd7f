"""Takes passwords, keys and signatures out of texts that people will read and pass on."""

import re
from typing import Any

__all__ = ["hide_secrets", "hide_secrets_of"]

_HIDDEN = "***"
_STOP = r"\s'\"<>"
_IN_PLACE_OF_USER = re.compile(
    # What stands before the server's name; a key with "/" or blanks in it, which no URL may have, too.
    rf"(?<=://)(?:[^/?#{_STOP}]*@|[^/?#@:{_STOP}]*:(?!\d+(?:[/?#]|$))[^@'\"<>\n]*@)"
)
_IN_QUERY = re.compile(
    r"([?&;][\w.%-]*(?:secret|token|passw|signature|credential|auth|key|(?<=[?&;])sig)[\w.%-]*=)"
    rf"[^&;#){_STOP}]+",
    re.IGNORECASE,
)

_PARTS_OF_TEXT = ("strerror", "filename", "filename2", "request_info")
"""What the texts of errors of the system, and of aiohttp, are made of, beside their arguments."""


def hide_secrets(text: str) -> str:
    """Return a text in which URLs have neither user and password nor values such as ``?token=``.

    Args:
        text: Of an error, say.

    Examples:
        >>> hide_secrets(
        ...     "s3://me:password@bucket/cells?session_token=abc&region=x is not there"
        ... )
        's3://***@bucket/cells?session_token=***&region=x is not there'
    """
    if "://" not in text:
        return text
    return _IN_QUERY.sub(rf"\1{_HIDDEN}", _IN_PLACE_OF_USER.sub(f"{_HIDDEN}@", text))


def hide_secrets_of(error: BaseException | None) -> None:
    """Change the texts of an error in place, and those of the errors that led to it.

    Args:
        error: Of any library.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        _hide_in(error, "args", tuple(map(_hidden, error.args)))
        for name in _PARTS_OF_TEXT:
            _hide_in(error, name, _hidden(getattr(error, name, None)))
        error = error.__cause__ or error.__context__


def _hidden(part: Any) -> Any:
    if isinstance(part, str):
        return hide_secrets(part)
    if isinstance(part, tuple) and hasattr(part, "_make"):  # with names, as what was asked for
        return part._make(map(_hidden, part))
    is_url = type(part).__module__.startswith("yarl")
    return hide_secrets(str(part)) if is_url else part


def _hide_in(error: BaseException, name: str, value: Any) -> None:
    if value != getattr(error, name, None):
        setattr(error, name, value)
