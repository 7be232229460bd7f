"""What the consumer and a worker say to each other."""

import pickle
import struct
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from fastloader._notes import add_note
from fastloader.engine._stream_point import StreamPoint
from fastloader.engine._wording import name_samples
from fastloader.shm._arena import SlotPlace

__all__ = [
    "Leave",
    "LiveState",
    "Order",
    "Reply",
    "ReplyKind",
    "Resume",
    "SlotOffer",
    "Task",
    "decode_order",
    "decode_reply",
    "encode_order",
    "encode_reply",
]


class Task(NamedTuple):
    """Make one batch."""

    run: int
    """Number of the pass over the data, counted by the pool; a cancelled one is skipped."""
    number: int
    """Number of the batch in its epoch, from 0."""
    indices: Any
    epoch: int
    base_seed: int
    slot: SlotPlace


class SlotOffer(NamedTuple):
    """Put a finished batch, for which the slot of its task was too small, here."""

    run: int
    number: int
    slot: SlotPlace


class LiveState(NamedTuple):
    """What to tell the dataset before the next task."""

    state: Any
    """Of a `LiveDataset`."""
    epoch: int | None
    """For the ``set_epoch`` of the dataset, if it is to be called."""


class Resume(NamedTuple):
    """Go on reading an iterable dataset from here, with the next task of the run."""

    run: int
    point: StreamPoint


class Leave(NamedTuple):
    """Exit."""


Order: TypeAlias = Task | SlotOffer | LiveState | Resume | Leave

_ORDERS: tuple[type[Order], ...] = (Task, SlotOffer, LiveState, Resume, Leave)
_ORDER_CODES = {kind: code for code, kind in enumerate(_ORDERS)}
_WITH_SLOT = {_ORDER_CODES[Task], _ORDER_CODES[SlotOffer]}  # as their last field


def encode_order(order: Order) -> bytes:
    """Turn an order into bytes.

    Raises:
        Exception: What pickle, or an index of a task, says of it where it cannot be pickled.
    """
    try:
        # As a plain tuple: a class would cost an import look-up at the other end for each task.
        return pickle.dumps((_ORDER_CODES[type(order)], *order), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        if isinstance(order, Task):
            add_note(
                error,
                f"Batch {order.number} is of {name_samples(order.indices)}: worker processes get the "
                "indices that the sampler gives by pickle. Let it give some that can be pickled, such "
                'as numbers and strings, or make the loader with num_workers=0 or workers="threads".',
            )
        raise


def decode_order(message: bytes) -> Order:
    """Turn bytes into an order."""
    code, *fields = pickle.loads(message)
    if code in _WITH_SLOT:
        fields[-1] = SlotPlace(*fields[-1])
    order: Order = _ORDERS[code](*fields)
    return order


class ReplyKind(IntEnum):
    """What a worker has to say."""

    BATCH = 0
    """The batch lies in the slot of its task; the body tells how."""
    TOO_LARGE = 1
    """The batch is made, but its slot is too small: a `SlotOffer` is awaited."""
    END = 2
    """This worker's share of an iterable dataset is at its end; the body tells what it lost."""
    ERROR = 3
    """The body is an error that the task raised."""
    UNPICKLABLE = 4
    """The body is an error: the batch cannot leave the worker."""
    SKIPPED = 5
    """The body lists samples that were left out; the reply to the task follows."""
    EMPTY = 6
    """All samples of the batch were left out."""
    CANCELLED = 7
    """The task belongs to a cancelled run."""
    NOT_STARTED = 8
    """The body is an error that kept the worker from starting."""
    UNSHARDED = 9
    """The iterable dataset gave samples without asking which worker it is in."""
    READY = 10
    """The worker has started."""
    WARNING = 11
    """The body is a text for the user; the reply to the task follows."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of its task."""
        return self not in {ReplyKind.SKIPPED, ReplyKind.UNSHARDED, ReplyKind.WARNING}


class Reply(NamedTuple):
    """One message of a worker."""

    kind: ReplyKind
    run: int
    number: int
    needed_bytes: int
    """Of the slot, for BATCH and TOO_LARGE."""
    body: bytes
    point: bytes = b""
    """A pickled `StreamPoint`: where an iterable dataset is after the task."""
    busy_seconds: float = 0.0
    """Since the worker took the order that this answers, or since its last reply to it."""
    cpu_seconds: float = 0.0
    """Of its process, in that time."""


_HEADER = struct.Struct("<Bqqqqdd")


def encode_reply(reply: Reply) -> bytes:
    """Turn a reply into bytes."""
    kind, run, number, needed_bytes, body, point, busy, cpu = reply
    header = _HEADER.pack(kind, run, number, needed_bytes, len(point), busy, cpu)
    return header + point + body


def decode_reply(message: bytes) -> Reply:
    """Turn bytes into a reply."""
    kind, run, number, needed_bytes, point_bytes, *seconds = _HEADER.unpack_from(message)
    start = _HEADER.size + point_bytes
    point = message[_HEADER.size : start] if point_bytes else b""
    body = message[start:]
    return Reply(ReplyKind(kind), run, number, needed_bytes, body, point, *seconds)
