"""What the code of a function looks up before it runs, where that code touches nothing else."""

import dis
import inspect
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["ATTRIBUTES", "Lookup", "NotPlainError", "lookups", "require"]

ATTRIBUTES = frozenset({
    *("T", "dtype", "imag", "ndim", "real", "shape", "start", "step", "stop"),
    *("astype", "bool", "byte", "clone", "contiguous", "copy", "double", "endswith", "flatten"),
    *("float", "get", "half", "int", "item", "items", "join", "keys", "long", "lower", "numpy"),
    *("permute", "reshape", "size", "split", "startswith", "strip", "tolist", "transpose"),
    *("unsqueeze", "upper", "values", "view"),
})
"""Attributes and methods that change nothing, of whichever plain value they are."""

_OF_WORKER_INFO = frozenset({"id", "num_workers"})
"""What a stream that is read whole, here or by one worker, may ask to find its share."""

_KEYWORDS = frozenset({"axis", "dim", "dtype", "fill_value", "key", "shape", "size", "strict"})
"""Of calls; unlike ``out``, which is written to, or ``device``."""

_UNUSUAL = (
    inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
)
"""Flags of code that is not a simple function."""

_HARMLESS = frozenset({
    *("BINARY_OP", "BINARY_SLICE", "BINARY_SUBSCR", "BUILD_CONST_KEY_MAP", "BUILD_LIST"),
    *("BUILD_MAP", "BUILD_SET", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE", "CALL"),
    *("CALL_KW", "COMPARE_OP", "CONTAINS_OP", "CONVERT_VALUE", "COPY", "DICT_UPDATE"),
    *("END_FOR", "FORMAT_SIMPLE", "FORMAT_VALUE", "FOR_ITER", "GET_ITER", "GET_LEN"),
    *("IS_OP", "JUMP_BACKWARD", "JUMP_FORWARD", "JUMP_IF_FALSE_OR_POP"),
    *("JUMP_IF_TRUE_OR_POP", "KW_NAMES", "LIST_EXTEND", "LIST_TO_TUPLE"),
    *("LOAD_ASSERTION_ERROR", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"),
    *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST"),
    *("LOAD_SMALL_INT", "NOP", "NOT_TAKEN", "POP_ITER", "POP_JUMP_BACKWARD_IF_FALSE"),
    *("POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
    *("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_NONE"),
    *("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE"),
    *("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_TRUE", "POP_TOP", "PRECALL"),
    *("PUSH_NULL", "RAISE_VARARGS", "RESUME", "RETURN_CONST", "RETURN_VALUE", "SET_UPDATE"),
    *("STORE_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "SWAP", "TO_BOOL"),
    *("UNARY_INVERT", "UNARY_NEGATIVE", "UNARY_NOT", "UNARY_POSITIVE", "UNPACK_EX"),
    *("UNPACK_SEQUENCE",),
})
"""Operations that touch nothing but local variables and new values, of any version of Python."""

_HARMLESS_IN_STREAMS = frozenset({
    *("CLEANUP_THROW", "END_SEND", "GET_YIELD_FROM_ITER", "JUMP_BACKWARD_NO_INTERRUPT"),
    *("RERAISE", "RETURN_GENERATOR", "SEND", "YIELD_VALUE"),
})
"""Operations of a generator alone."""


class NotPlainError(Exception):
    """Something is not known to be harmless; never leaves this package."""


def require(is_harmless: bool) -> None:
    """Give up where something is not known to be harmless.

    Raises:
        NotPlainError: If it is not.
    """
    if not is_harmless:
        raise NotPlainError


class Lookup(NamedTuple):
    """What code looks up before it uses it, such as ``self.table.shape`` or ``torch.full``."""

    start: str | None
    """A global name; None for the dataset."""
    attributes: tuple[str, ...]


@lru_cache(maxsize=256)
def lookups(code: CodeType, is_method: bool, is_stream: bool) -> tuple[Lookup, ...] | None:
    """Return what code looks up of objects that are known before it runs, in order.

    Args:
        code: Of a function.
        is_method: Whether its first argument is the dataset.
        is_stream: Whether it may be a generator.

    Returns:
        All that is left to judge; None if the code is harmful whatever it looks up.
    """
    try:
        return tuple(_read_lookups(code, is_method, is_stream))
    except NotPlainError:
        return None


def _read_lookups(code: CodeType, is_method: bool, is_stream: bool) -> Iterator[Lookup]:
    """Yield each lookup at the first step that is no attribute of it any more."""
    unusual = _UNUSUAL & ~inspect.CO_GENERATOR if is_stream else _UNUSUAL
    attributes = ATTRIBUTES | _OF_WORKER_INFO if is_stream else ATTRIBUTES
    require(not code.co_flags & unusual and not code.co_freevars and not code.co_cellvars)
    owner = code.co_varnames[0] if is_method and code.co_argcount else None
    lookup: Lookup | None = None
    before: Any = None
    for step in dis.get_instructions(code):
        is_attribute = step.opname in {"LOAD_ATTR", "LOAD_METHOD"}
        if is_attribute and lookup is not None and not step.is_jump_target:
            lookup = Lookup(lookup.start, (*lookup.attributes, step.argval))
            continue
        if lookup is not None:
            yield lookup
            lookup = None
        if is_attribute:
            require(step.argval in attributes)
        elif step.opname == "LOAD_GLOBAL":
            lookup = Lookup(step.argval, ())
        elif not is_stream or not _is_of_generator(step):
            _require_harmless(step, code.co_consts, before)
            if owner is not None and _loads(step, owner):
                lookup = Lookup(None, ())
        before = step.argval


def _require_harmless(step: dis.Instruction, constants: tuple[Any, ...], before: Any) -> None:
    """Look at a step that loads neither a global nor an attribute.

    Args:
        step: The step.
        constants: Of the code.
        before: Argument of the step before.
    """
    require(step.opname in _HARMLESS)
    if step.opname == "BINARY_OP":
        require(not step.argrepr.endswith("="))  # in place, maybe of what the dataset holds
    elif step.opname in {"KW_NAMES", "CALL_KW"}:  # before Python 3.13, and since
        names = constants[step.arg or 0] if step.opname == "KW_NAMES" else before
        require(type(names) is tuple and _KEYWORDS.issuperset(names))


def _is_of_generator(step: dis.Instruction) -> bool:
    is_stop = step.opname == "CALL_INTRINSIC_1" and "STOPITERATION" in step.argrepr
    return is_stop or step.opname in _HARMLESS_IN_STREAMS


def _loads(step: dis.Instruction, owner: str) -> bool:
    """Return whether a step loads the dataset, as the last of what it does."""
    if "_FAST" not in step.opname:
        return False
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    actions = [word for word in step.opname.split("_") if word in {"LOAD", "STORE"}]
    for number, (name, action) in enumerate(zip(names, actions, strict=True), start=1):
        if name == owner:
            require(action == "LOAD" and number == len(names))
            return True
    return False
