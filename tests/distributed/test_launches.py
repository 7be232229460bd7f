"""Launched by torchrun, ranks of real process groups share samples, steps and epochs."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.distributed.rank import LENGTH

_ROOT = Path(__file__).parents[2]
_WORKER = Path(__file__).with_name("rank.py")
_ONCE = ("evaluated", "workers", "stream")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launch(folder, num_ranks, *, num_nodes=1, backend="gloo"):
    """Return what each rank wrote down."""
    port = free_port()
    paths = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", f"--nnodes={num_nodes}",
                f"--node-rank={node}", f"--nproc-per-node={num_ranks // num_nodes}",
                "--master-addr=127.0.0.1", f"--master-port={port}",
                str(_WORKER), str(folder), backend,
            ],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in range(num_nodes)
    ]  # fmt: skip
    try:
        outputs = [node.communicate(timeout=300)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0] * num_nodes, "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def check(ranks):
    """Compare what the ranks of one launch saw."""
    num_ranks = len(ranks)
    whole = set(range(LENGTH))
    for epoch in range(2):
        parts = {
            name: [rank["seen"][name][epoch] for rank in ranks] for name in ranks[0]["seen"]
        }
        counts = {
            name: Counter(i for part in found for i in part) for name, found in parts.items()
        }
        lengths = {name: {len(part) for part in found} for name, found in parts.items()}
        each = -(-LENGTH // num_ranks)
        for name in _ONCE:
            assert counts[name] == Counter(whole)
        for name in ("shuffled", "seeded", "torch's weighted", "balanced", "grouped"):
            assert lengths[name] == {each}
        for name in ("shuffled", "seeded", "torch's weighted", "grouped"):
            assert set(counts[name]) == whole
            assert counts[name].total() - len(whole) < num_ranks
        assert lengths["dropped"] == {LENGTH // num_ranks // 2 * 2}  # whole batches of two
        assert set(counts["dropped"].values()) == {1}
        assert lengths["weighted"] == {-(-40 // num_ranks)}
        assert lengths["short epochs"] == {4}
        assert counts["shards"] == Counter([*range(9)] * 2)
        by_class = Counter(i % 3 for i in counts["balanced"].elements())
        assert max(by_class.values()) - min(by_class.values()) <= 1 + num_ranks
    for rank in ranks:
        assert rank["seen"]["shuffled"][0] != rank["seen"]["shuffled"][1]
        assert rank["steps"] == -(-each // 2)
        assert rank["parameters"] == ranks[0]["parameters"]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("num_ranks", "num_nodes"),
    [(2, 1), (3, 1), (4, 2)],
    ids=["2 ranks", "3 ranks", "2 nodes of 2"],
)
def test_ranks_of_a_launch_share_samples_and_take_equal_steps(tmp_path, num_ranks, num_nodes):
    check(launch(tmp_path, num_ranks, num_nodes=num_nodes))


@pytest.mark.gpu
@pytest.mark.multiprocess
def test_ranks_with_a_device_each_share_samples_and_take_equal_steps(tmp_path):
    if torch.cuda.device_count() < 2:
        if os.environ.get("FASTLOADER_REQUIRE_GPU") == "1":
            pytest.fail("needs two CUDA devices")
        pytest.skip("needs two CUDA devices")

    check(launch(tmp_path, 2, backend="nccl"))
