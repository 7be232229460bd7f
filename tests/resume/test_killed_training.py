"""A training run that is killed anywhere, and goes on from its checkpoint, sees what it would have."""

import json
import os
import random
import signal
import time

import pytest
import torch

from fastloader import FastLoader, seed_everything
from fastloader.datasets import Augment
from fastloader.transforms import GaussianNoise, RandomFlip
from tests.resume.datasets import Drawing

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks"),
]

NUM_EPOCHS = 3


class Pictures(Drawing):
    """Small images; the values of a sample depend on its index, and on a global draw."""

    def __getitem__(self, index):
        return torch.full((1, 4, 4), float(index)) + torch.rand(()), index


def make_loader(num_workers):
    dataset = Augment(Pictures(30), [RandomFlip(), GaussianNoise(0.1)])
    return FastLoader(
        dataset,
        4,
        shuffle=True,
        seed=11,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )


def train(folder, num_workers, seconds_each):
    """Go on from the checkpoint, and write one after each batch, with all that was seen."""
    torch.set_num_threads(1)
    seed_everything(os.getpid())  # what a new process has drawn must not matter
    loader = make_loader(num_workers)
    epoch, seen = 0, []
    if (folder / "checkpoint").exists():
        checkpoint = json.loads((folder / "checkpoint").read_text())
        loader.load_state_dict(checkpoint["loader"])
        epoch, seen = checkpoint["epoch"], checkpoint["seen"]
    for now in range(epoch, NUM_EPOCHS):
        for images, labels in loader:
            seen.append([images.double().sum().item(), labels.tolist()])
            save(folder, {"epoch": now, "seen": seen, "loader": loader.state_dict()})
            time.sleep(seconds_each)
        save(folder, {"epoch": now + 1, "seen": seen, "loader": loader.state_dict()})
    return seen


def save(folder, checkpoint):
    (folder / "new").write_text(json.dumps(checkpoint))
    (folder / "new").replace(folder / "checkpoint")


def start(*arguments):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        train(*arguments)
        status = 0
    finally:
        os._exit(status)


@pytest.mark.parametrize("num_kills", [8, pytest.param(50, marks=pytest.mark.stress)])
def test_a_run_killed_anywhere_sees_what_an_undisturbed_one_sees(tmp_path, num_kills):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    killed.mkdir()
    expected = train(undisturbed, 0, 0.0)
    moments = random.Random(num_kills)
    num_steps = NUM_EPOCHS * 8

    for _ in range(num_kills):
        pid = start(killed, moments.choice([0, 1, 2]), num_kills / num_steps * 0.06)
        time.sleep(moments.uniform(0.05, 0.15))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    pid = start(killed, 2, 0.0)
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert json.loads((killed / "checkpoint").read_text())["seen"] == expected
