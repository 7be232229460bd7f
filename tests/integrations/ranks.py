"""Two processes of one gloo group, as `torchrun --nproc-per-node 2` would start them."""

import multiprocessing
import os
import socket
import traceback
import warnings
from multiprocessing.connection import wait

import torch

_SECONDS = 60


def on_two_ranks(function, *arguments, with_group=True):
    """Return what ``function(rank, *arguments)`` gives in each of two forked processes.

    With `with_group` they have a process group already; else only the variables of torchrun.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [
        context.Process(
            target=_run, args=(function, rank, port, pipes[rank][1], with_group, arguments)
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for _, writer in pipes:
        writer.close()
    readers = [reader for reader, _ in pipes]
    try:
        answers = _collect(readers)
    finally:
        for rank in ranks:
            rank.join(1)
            if rank.is_alive():
                rank.kill()
                rank.join()
            rank.close()
        for reader in readers:
            reader.close()
    failures = [text for ok, text in answers if not ok]
    assert not failures, "\n".join(failures)
    return [answer for _, answer in answers]


def _collect(readers):
    answers = {}
    while len(answers) < 2:
        missing = [reader for reader in readers if reader not in answers]
        ready = wait(missing, _SECONDS)
        if not ready:
            return [answers.get(reader, (False, "no answer in time")) for reader in readers]
        for reader in ready:
            try:
                answers[reader] = reader.recv()
            except EOFError:
                answers[reader] = False, "ended without an answer"
    return [answers[reader] for reader in readers]


def _run(function, rank, port, writer, with_group, arguments):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the frameworks; the test's own process shows them
    try:
        if with_group:
            torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
        answer = True, function(rank, *arguments)
    except BaseException:  # noqa: BLE001 - reported by the test
        answer = False, traceback.format_exc()
    writer.send(answer)
    os._exit(0)
