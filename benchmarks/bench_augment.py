"""How much faster is a transform of a whole batch than one image after the other?

Question: images per second of each transform, its images one by one or the batch at once.
Held fixed: 256 images of 3 x 64 x 64, float32 and uint16, in one process with one thread, as a
    worker has it; both ways give the same tensor. `--threads 2` measures with that many threads of
    torch, of which the loop can use one; `--device cuda` with images that lie on a GPU, where the
    clock stops when the GPU is done.
Baseline: images one by one, each with its key as a dataset makes it, then collated by torch, which
    is what the loop of a stock loader does.
Method: the images lie in memory that is used again, as a batch does in a `FastLoader`, for both
    ways; the batch at once is made in such memory, too, ten times in a run. Flips and turns are
    also made in the memory of the batch itself, as `Augment` makes them where nobody else has it.
    The last rows do the same with `Augment`, and the first show what the key of a sample costs.
Limit: the work on the pixels alone, by the fastest of the ways tried, with everything drawn before
    and into memory that is ready: a copy of all pixels, or of the view of each image that was
    drawn; shares of a range and their powers; sums of shifted images; means
    (`_bare_transforms.py`). "Bare" of noise are torch's normal numbers, which are no limit. None
    with several threads, as it has one; none on a GPU, where only the transforms are measured; none
    through `Augment`, whose transforms have theirs. It is NumPy's or torch's. Where compiled
    kernels are used (`fastloader doctor` says so), those go beyond it, and it is no limit of
    theirs.
Losing cases: none against the loop. Where the limit itself is less than ten times the loop, the
    calls from Python, which a batch saves, are too small a part of the loop for it to be ten times
    as fast.
Command: python benchmarks/bench_augment.py --json benchmarks/results/<date>-<machine>/augment.json
"""

import time
from typing import Any

import torch
from torch.utils.data import default_collate

from _bare_transforms import bare_work
from _harness import Benchmark, Run, Work
from fastloader.datasets import Augment
from fastloader.randomness._keyed import sample_keys
from fastloader.tensors._buffers import BufferPool, allocating_with, empty_batch
from fastloader.transforms import (
    ChannelDrop,
    Cutout,
    Draws,
    GaussianBlur,
    GaussianNoise,
    RandomCrop,
    RandomFlip,
    RandomGamma,
    RandomQuarterTurn,
    RandomResizedCrop,
    RandomScale,
    RandomShift,
    SpecAugment,
    Transform,
)
from fastloader.transforms._compiled import kernels

TRANSFORMS: dict[str, Transform] = {
    "flip": RandomFlip(),
    "quarter turn": RandomQuarterTurn(),
    "crop": RandomCrop(48),
    "padded crop": RandomCrop(64, padding=8),
    "resized crop": RandomResizedCrop(64),
    "scale": RandomScale(),
    "shift": RandomShift(per_channel=True),
    "gamma": RandomGamma(),
    "noise": GaussianNoise(),
    "blur": GaussianBlur(),
    "channel drop": ChannelDrop(),
    "cutout": Cutout(),
    "cutout, mean": Cutout(fill="mean"),
    "SpecAugment": SpecAugment(),
}
FIVE = [RandomFlip(), RandomQuarterTurn(), RandomScale(), RandomShift(), Cutout()]
COMPILED = {"flip", "quarter turn", "crop", "padded crop", "gamma", "noise", "blur"}
DTYPES = {"float32": torch.float32, "uint16": torch.uint16}
WAYS = ("one by one", "batch", "in place")
NUM_IMAGES = 256
NUM_BATCHES = 10  # of one run, as one takes no longer than it takes to read the clocks
POOL = BufferPool()


class Images:
    """Images in memory, read one by one or as a batch."""

    makes_new_batches = True

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.images[index]

    def get_batch(self, indices: list[int]) -> torch.Tensor:
        """Return the images at `indices`."""
        batch = empty_batch((len(indices), *self.images.shape[1:]), self.images.dtype)
        rows = torch.tensor(indices)
        bits = torch.int16 if batch.dtype == torch.uint16 else batch.dtype
        torch.index_select(self.images.view(bits), 0, rows, out=batch.view(bits))
        return batch


def random_images(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return the same images each time."""
    images = torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    return images if dtype.is_floating_point else (images * 60_000).to(dtype)


def random_batch(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Return the same images in the memory that a batch lies in."""
    return POOL((count, 3, 64, 64), dtype).copy_(random_images(dtype, count))


def keys(count: int, *, is_batch: bool) -> Run:
    """Make the keys of some samples."""

    def run() -> Work:
        start = time.perf_counter()
        if is_batch:
            sample_keys(1, 2, range(count))
        else:
            for index in range(count):
                sample_keys(1, 2, [index])
        microseconds = (time.perf_counter() - start) * 1e6 / count
        return Work(samples=count, values={"microseconds_per_key": microseconds})

    return run


def transformed(transform_name: str, dtype: str, count: int, device: str, way: str) -> Run:
    """Change images by a transform with the keys of an epoch, in one of the `WAYS`."""
    transform = TRANSFORMS[transform_name]
    images, indices = random_batch(DTYPES[dtype], count).to(device), range(count)

    def change() -> Work:
        if way == "one by one":
            default_collate([
                transform(image, Draws.of(1, 2, [index])) for index, image in enumerate(images)
            ])
            return Work(samples=count)
        for _ in range(NUM_BATCHES):
            with allocating_with(POOL):
                transform.batch(images, Draws.of(1, 2, indices), in_place=way == "in place")
        return Work(samples=NUM_BATCHES * count)

    def change_on_device() -> Work:
        torch.cuda.synchronize()
        work = change()
        torch.cuda.synchronize()
        return work

    return change if device == "cpu" else change_on_device


def augmented(transform_name: str, dtype: str, count: int, *, is_batch: bool) -> Run:
    """Read images through `Augment`."""
    transforms = FIVE if transform_name == "five" else [TRANSFORMS[transform_name]]
    dataset = Augment(Images(random_images(DTYPES[dtype], count)), transforms)

    def run() -> Work:
        if not is_batch:
            default_collate([dataset[index] for index in range(count)])
            return Work(samples=count)
        for _ in range(NUM_BATCHES):
            with allocating_with(POOL):
                dataset.get_batch(list(range(count)))
        return Work(samples=NUM_BATCHES * count)

    return run


def bare(transform_name: str, dtype: str, count: int) -> Run:
    """Do the work on the pixels alone; see `bare_work`."""
    work = bare_work(transform_name, random_batch(DTYPES[dtype], count))

    def run() -> Work:
        for _ in range(NUM_BATCHES):
            work()
        return Work(samples=NUM_BATCHES * count)

    return run


def add_transforms(
    benchmark: Benchmark, dtype: str, count: int, device: str, *, with_bare: bool
) -> None:
    """Add each transform by itself."""
    for name in TRANSFORMS:
        group = f"{name}, {dtype}"
        options: dict[str, Any] = {"transform_name": name, "dtype": dtype, "count": count}
        is_limit = name != "noise" and not (kernels() and name in COMPILED)
        # Others would change the values of a batch further in each run.
        stays_alike = name in {"flip", "quarter turn"}
        for way in WAYS if stays_alike else WAYS[:2]:
            benchmark.add(
                f"{group}, {way}", transformed, group=group, **options, device=device, way=way
            )
        if with_bare:
            benchmark.add(f"{group}, bare", bare, group=group, is_limit=is_limit, **options)


def add_augmented(benchmark: Benchmark, dtype: str, count: int) -> None:
    """Add each transform, and five of them, through `Augment`."""
    for name in [*TRANSFORMS, "five"]:
        group = f"{name} through Augment, {dtype}"
        options: dict[str, Any] = {"transform_name": name, "dtype": dtype, "count": count}
        for way in WAYS[:2]:
            benchmark.add(
                f"{group}, {way}", augmented, group=group, **options, is_batch=way == "batch"
            )


if __name__ == "__main__":
    benchmark = Benchmark(__doc__, isolate=False)
    benchmark.parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    benchmark.parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="where the images lie"
    )
    arguments = benchmark.arguments()
    torch.set_num_threads(arguments.threads)
    on_cpu = arguments.device == "cpu"
    count = 8 if arguments.smoke else NUM_IMAGES
    for way in WAYS[:2]:
        benchmark.add(f"key, {way}", keys, group="key", count=count, is_batch=way == "batch")
    for dtype in DTYPES:
        with_bare = on_cpu and arguments.threads == 1
        add_transforms(benchmark, dtype, count, arguments.device, with_bare=with_bare)
        if on_cpu:
            add_augmented(benchmark, dtype, count)
    benchmark.main(in_groups=True, compared="samples_per_second")
