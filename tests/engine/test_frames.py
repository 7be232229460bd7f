"""Messages over pipes arrive whole and in order, and nobody waits who must not."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloader.engine._frames import FrameReader, FrameSender, FrameSplitter, send_frame


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    ends = {reader, writer}
    yield reader, writer, ends
    for end in ends:
        os.close(end)


@given(messages=st.lists(st.binary(max_size=300), max_size=20))
def test_messages_arrive_as_they_were_sent(messages):
    reader, writer = os.pipe()
    for message in messages:
        send_frame(writer, message)
    os.close(writer)

    received = FrameReader(reader, lambda: False)

    assert [received.read() for _ in messages] == messages
    assert received.read() is None
    os.close(reader)


def test_a_message_that_has_half_arrived_is_not_given_yet(pipe):
    reader, writer, _ = pipe
    splitter = FrameSplitter(reader)
    frame = (5).to_bytes(8, "little") + b"hello"

    os.write(writer, frame[:10])
    assert splitter.read() == []
    os.write(writer, frame[10:])

    assert splitter.read() == [b"hello"]


def test_the_end_of_a_pipe_is_noticed_after_its_last_message(pipe):
    reader, writer, ends = pipe
    splitter = FrameSplitter(reader)
    send_frame(writer, b"last")
    os.close(writer)
    ends.discard(writer)

    assert splitter.read() == [b"last"]
    splitter.read()
    assert splitter.is_ended


def test_a_full_pipe_does_not_hold_the_sender_up(pipe):
    reader, writer, _ = pipe
    sender = FrameSender(writer)
    large = os.urandom(1 << 20)

    sender.send(large)
    assert sender.has_waiting
    splitter, received = FrameSplitter(reader), []
    while not received:
        received = splitter.read()
        sender.flush()

    assert received == [large]
    assert not sender.has_waiting


def test_sending_to_nobody_raises(pipe):
    reader, writer, ends = pipe
    os.close(reader)
    ends.discard(reader)

    with pytest.raises(BrokenPipeError):
        FrameSender(writer).send(b"anyone?")
