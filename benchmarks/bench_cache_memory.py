"""How many copies of the decoded pixels do ranks with two workers each hold together?

Question: copies = (memory of many - memory of few) / (pixels of many - pixels of few), where many
    are all images and few a sixteenth of them, so that interpreters, libraries and batches drop
    out.
Held fixed: 16-bit images of 512 x 512, batches of 4, two ranks, two workers each, two batches ahead
    for each: on a busy machine loaders would go further ahead, and of few images cannot. A rank is
    a process that inherits nothing, as a launcher would start it: it builds its own dataset, and
    its loader starts two workers by fork, forkserver or spawn, which read every image. One alone is
    a program of its own, whose pixels are in memory of its own until workers that inherit nothing
    are started.
Baseline: a dataset by hand that holds its images in an array, in a stock DataLoader, against the
    cache in shared memory, filled at once and in the background, that of one alone, and the one on
    disk.
Method: the memory of all processes is summed up (PSS: a page that n processes map counts 1/n in
    each), but for pages of program files, which other programs of the machine share. A run stops
    with an error if a cache is held more than 1.05 times.
Limit: one copy.
Losing cases: none; the caches are there to be held once.
Command: python benchmarks/bench_cache_memory.py --json benchmarks/results/<date>-<machine>/cache-memory.json
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from _facts import run_facts
from fastloader import FastLoader, OMEArrowDataset, write_images

NUM_RANKS, NUM_WORKERS, BATCH_SIZE = 2, 2, 4
SIDE, NUM_IMAGES, FEW_SHARE = 512, 2048, 16
IMAGE_BYTES = SIDE * SIDE * 2
KINDS = ("shared", "background", "alone", "disk", "by hand")
MAX_COPIES = 1.05
"""Of the caches, whatever the start method."""
LEAST_ADDED_BYTES = 256 << 20
"""Of pixels: with fewer, batches under way and what interpreters take one time and not the next
are as much as the pixels, and no number of copies can be told."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the ranks do."""

    kind: str
    start_method: str
    path: Path
    folder: Path
    ranks_start_by: Literal["spawn", "forkserver"]
    """By spawn, as a launcher would; for a smoke run, from a server that has imported torch once."""


class ByHand(Dataset[torch.Tensor]):
    """Images in an array, as many write it."""

    def __init__(self, images: npt.NDArray[np.uint16]) -> None:
        self.images = images

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self.images[index])

    def __len__(self) -> int:
        return len(self.images)


def make_images(num_images: int) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield images that no system can store in less memory."""
    for number in range(num_images):
        yield np.random.default_rng(number).integers(0, 4096, (SIDE, SIDE), np.uint16)


def open_loader(setup: Setup) -> Any:
    """Return the loader of a rank."""
    options: dict[str, Any] = {
        "num_workers": NUM_WORKERS,
        "multiprocessing_context": setup.start_method,
        "prefetch_factor": 2,
        "persistent_workers": True,
    }
    if setup.kind == "by hand":
        dataset = OMEArrowDataset(setup.path, dtype=None, axes="YX", preload=False)
        images = np.empty((len(dataset), SIDE, SIDE), np.uint16)
        for index in range(len(dataset)):
            images[index] = dataset[index].numpy()
        return DataLoader(ByHand(images), BATCH_SIZE, **options)
    where: dict[str, Any] = {}
    if setup.kind == "disk":
        where = {"cache": "disk", "cache_dir": setup.folder}
    elif setup.kind == "background":
        where = {"preload": "background"}
    dataset = OMEArrowDataset(setup.path, dtype=None, axes="YX", **where)
    return FastLoader(dataset, BATCH_SIZE, **options)


def run_rank(setup: Setup, connection: Connection) -> None:
    """Read all images by workers, and stay until told to go."""
    loader = open_loader(setup)
    connection.send(sum(len(batch) for batch in loader))
    connection.recv()


def measure_bytes(setup: Setup, num_images: int) -> int:
    """Return the memory of all ranks and workers once every image was read."""
    context: Any = multiprocessing.get_context(setup.ranks_start_by)
    pipes = [context.Pipe() for _ in range(NUM_RANKS)]
    ranks = [context.Process(target=run_rank, args=(setup, there)) for _, there in pipes]
    for rank in ranks:
        rank.start()
    for here, _ in pipes:
        assert here.recv() == num_images
    num_bytes = sum(count_tree_bytes(rank.pid) for rank in ranks if rank.pid is not None)
    for (here, _), rank in zip(pipes, ranks, strict=True):
        here.send("done")
        rank.join()
    return num_bytes


def measure_alone(setup: Setup, num_images: int) -> int:
    """Return the memory of a program that `multiprocessing` did not start, and its workers."""
    command = [sys.executable, __file__, "--alone", setup.start_method, str(setup.path)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert int(program.stdout.readline()) == num_images
        num_bytes = count_tree_bytes(program.pid)
        program.stdin.close()
    return num_bytes


def run_alone(start_method: str, path: Path) -> None:
    """Read all images by workers, and stay until the input ends."""
    loader = open_loader(Setup("alone", start_method, path, path.parent, "spawn"))
    print(sum(len(batch) for batch in loader), flush=True)
    sys.stdin.read()


def count_tree_bytes(pid: int) -> int:
    """Return what `count_own_bytes` does, of a process and all that it started."""
    process = psutil.Process(pid)
    tree = [process, *process.children(recursive=True)]
    return sum(count_own_bytes(one.pid) for one in tree)


def count_own_bytes(pid: int) -> int:
    """Return the share of a process in the memory that is of no program file."""
    total_kilobytes, is_own = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):  # the first line of a mapping; see proc_pid_smaps(5)
            name = words[5] if len(words) > 5 else ""
            is_own = not name.startswith("/") or "memfd:" in name or name.endswith(".pixels")
        elif words[0] == "Pss:" and is_own:
            total_kilobytes += int(words[1])
    return total_kilobytes * 1024


def count_copies(
    kind: str, start_method: str, many: Path, few: Path, num_images: int, *, smoke: bool
) -> Any:
    """Return the copies of the pixels that all processes hold, and what they are made of."""
    multiprocessing.set_forkserver_preload(["fastloader.datasets"])
    num_few = num_images // FEW_SHARE
    found = {}
    for path, count in ((many, num_images), (few, num_few)):
        setup = Setup(kind, start_method, path, many.parent, "forkserver" if smoke else "spawn")
        measure = measure_alone if kind == "alone" else measure_bytes
        found[count] = measure(setup, count)
    grown_bytes = found[num_images] - found[num_few]
    added_bytes = (num_images - num_few) * IMAGE_BYTES
    return {
        "copies": grown_bytes / added_bytes if added_bytes >= LEAST_ADDED_BYTES else None,
        "many_bytes": found[num_images],
        "few_bytes": found[num_few],
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--smoke", action="store_true", help="few images, no claims")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this one")
    parser.add_argument("--alone", nargs=2, metavar=("METHOD", "PATH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        run_alone(arguments.alone[0], Path(arguments.alone[1]))
        return
    num_images = 64 if arguments.smoke else NUM_IMAGES
    methods = ["fork"] if arguments.smoke else multiprocessing.get_all_start_methods()
    facts = run_facts()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        many, few = Path(folder) / "many.parquet", Path(folder) / "few.parquet"
        for path, count in ((many, num_images), (few, num_images // FEW_SHARE)):
            write_images(make_images(count), path, compression=None, progress=False)
        added = (num_images - num_images // FEW_SHARE) * IMAGE_BYTES / 2**20
        print(f"{NUM_RANKS} ranks, {NUM_WORKERS} workers each; {added:.0f} MiB more of pixels")
        print("cache    start      few MiB many MiB copies of the pixels")
        kinds = ["shared", "alone"] if arguments.smoke else KINDS
        for kind in filter(arguments.kind.__contains__, kinds) if arguments.kind else kinds:
            for method in methods:
                result = count_copies(
                    kind, method, many, few, num_images, smoke=arguments.smoke
                )
                results[f"{kind}, {method}"] = result
                few_mib, many_mib = (result[f"{n}_bytes"] / 2**20 for n in ("few", "many"))
                copies = result["copies"]
                told = "too few images to tell" if copies is None else f"{copies:.3f}"
                print(f"{kind:8} {method:10} {few_mib:7.0f} {many_mib:8.0f} {told}", flush=True)
                assert copies is None or kind == "by hand" or copies < MAX_COPIES
    if arguments.smoke:
        print("smoke run: these numbers mean nothing.")
    if arguments.json:
        document = {
            "question": (__doc__ or "").partition("\n")[0],
            **facts,
            "pixel_bytes": num_images * IMAGE_BYTES,
            "results": results,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
