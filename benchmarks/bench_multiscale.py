"""What does it save to make scales one by one from a uint8 batch, with a backward for each?

Question: the bytes of an image in the batch as the loader sends it, the peak of what autograd keeps
    for backward, and on an accelerator the peak of allocated memory above the model.
Held fixed: a small CNN, the same images, the same loss (the mean over the scales).
Baseline: all scales of each image in float32, and one backward over the sum of their losses.
Method: `MultiScale.scales_of` and one backward for each scale; gradients must agree. Steps are
    timed in turn, every other round in reverse; ratios are made round by round.
Limit: none: of bytes the image itself, which is given, and of time the baseline.
Losing cases: more, smaller kernels: where the scales are small, a step may take longer.
Command: python benchmarks/bench_multiscale.py --json benchmarks/results/<date>-<machine>/multiscale.json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from _facts import run_facts
from fastloader.datasets import ChannelStatistics, MultiScale

SCALES = (1.0, 0.5, 0.25)


class Saved:
    """Counts the bytes that autograd keeps for backward, now and at most."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def hooks(self) -> Any:
        """Return a context in which what is saved is counted."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )


class _Kept:
    """One tensor that is kept; counted as long as it lives."""

    def __init__(self, saved: Saved, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._saved = saved
        self._nbytes = 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        saved.now += self._nbytes
        saved.peak = max(saved.peak, saved.now)

    def __del__(self) -> None:
        self._saved.now -= self._nbytes


def network() -> nn.Module:
    """Make a CNN of usual depth that takes images of any size."""
    widths = [3, 32, 64, 128]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def step_of_all_scales(
    model: nn.Module, kept: list[torch.Tensor], labels: torch.Tensor
) -> None:
    """One backward over all scales, which come from the host."""
    scales = [scaled.to(labels.device) for scaled in kept]
    losses = [nn.functional.cross_entropy(model(images), labels) for images in scales]
    (sum(losses, torch.zeros((), device=labels.device)) / len(losses)).backward()  # type: ignore[no-untyped-call]


def step_by_scale(
    model: nn.Module, dataset: MultiScale, images: torch.Tensor, labels: torch.Tensor
) -> None:
    """One backward for each scale, all made of the batch that comes from the host."""
    for scaled in dataset.scales_of(images.to(labels.device)):
        loss = nn.functional.cross_entropy(model(scaled), labels)
        (loss / len(dataset.scales)).backward()  # type: ignore[no-untyped-call]


def measure(
    model: nn.Module, step: Callable[[], None], device: torch.device
) -> dict[str, float]:
    """Run a step once and return what it cost."""
    model.zero_grad(set_to_none=False)
    saved = Saved()
    before = 0
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    with saved.hooks():
        step()
    found = {}
    if device.type == "cuda":
        torch.cuda.synchronize()
        found["device_peak_bytes"] = float(torch.cuda.max_memory_allocated() - before)
    found["step_seconds"] = time.perf_counter() - start
    found["saved_peak_bytes"] = float(saved.peak)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels along each side")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--smoke", action="store_true", help="one small run, no claims")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.batch_size, arguments.size, arguments.runs = 4, 32, 1

    device = torch.device(arguments.device)
    torch.manual_seed(0)
    shape = (arguments.batch_size, 3, arguments.size, arguments.size)
    images = torch.randint(0, 256, shape, dtype=torch.uint8)
    dataset = MultiScale(list(images), SCALES, statistics=ChannelStatistics.of_images(images))
    kept = [scaled.clone() for scaled in dataset.scales_of(images)]
    bytes_of_base = images.nbytes // len(images)
    bytes_of_all = sum(scaled.nbytes for scaled in kept) // len(images)

    model = network().to(device)
    labels = torch.randint(0, 10, (len(images),), device=device)
    ways: dict[str, Callable[[], None]] = {
        "all scales, one backward": lambda: step_of_all_scales(model, kept, labels),
        "MultiScale, one each": lambda: step_by_scale(model, dataset, images, labels),
    }

    gradients = {}
    for name, step in ways.items():
        measure(model, step, device)  # also warms up
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
    first, second = gradients.values()
    gradient_difference = float((first - second).norm() / first.norm())

    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for turn in range(arguments.runs):
        for name in ways if turn % 2 == 0 else reversed(ways):
            runs[name].append(measure(model, ways[name], device))

    print(str(__doc__).partition("\n")[0])
    print(f"host bytes of an image: {bytes_of_base:,} against {bytes_of_all:,} for all scales")
    print(f"saved: {1 - bytes_of_base / bytes_of_all:.1%} of the host's memory and of the copy")
    print(f"relative difference of the gradients: {gradient_difference:.1e}")
    baseline, ours = runs.values()
    for key in baseline[0]:
        median = [statistics.median(run[key] for run in way) for way in (baseline, ours)]
        ratio = statistics.median(b[key] / a[key] for a, b in zip(baseline, ours, strict=True))
        print(f"{key}: {median[0]:,.4g} all at once, {median[1]:,.4g} by scale, x{ratio:.2f}")
    if arguments.smoke:
        print("smoke run: these numbers mean nothing.")
    if arguments.json:
        document = {
            **run_facts(),
            "device": arguments.device,
            "host_bytes_of_base": bytes_of_base,
            "host_bytes_of_all_scales": bytes_of_all,
            "relative_difference_of_gradients": gradient_difference,
            "runs": runs,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
