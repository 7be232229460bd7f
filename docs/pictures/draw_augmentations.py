"""Draw `augment_*.png`: what each transform does to one image in five epochs.

python docs/pictures/draw_augmentations.py [NAME ...]
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from fastloader.datasets import Augment
from fastloader.transforms import (
    Chain,
    ChannelDrop,
    Cutout,
    GaussianBlur,
    GaussianNoise,
    OneOf,
    RandomCrop,
    RandomFlip,
    RandomGamma,
    RandomQuarterTurn,
    RandomResizedCrop,
    RandomScale,
    RandomShift,
    Sometimes,
    SpecAugment,
    Transform,
)

mpl.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
DATA = FOLDER.parents[1] / "data" / "nf1_cells.parquet"
CROP = "nf1-084"
NUM_EPOCHS = 5
SEED = 3  # its first five draws happen to be well apart: 0.9, 1.0, 0.0, 0.3, 0.4
INK = "#22303c"

PICTURES: dict[str, Transform] = {
    "flip": RandomFlip(),
    "quarter_turn": RandomQuarterTurn(),
    "crop": RandomCrop(48),
    "padded_crop": RandomCrop(80, padding=16),
    "resized_crop": RandomResizedCrop(80, area=(0.2, 1.0)),
    "scale": RandomScale((0.5, 1.8)),
    "shift": RandomShift((-0.25, 0.25), per_channel=True),
    "gamma": RandomGamma((0.4, 2.5)),
    "noise": GaussianNoise((0.0, 0.25)),
    "blur": GaussianBlur((0.0, 3.0)),
    "channel_drop": ChannelDrop(0.4),
    "cutout": Cutout(28, num_holes=2, fill="mean"),
    "sometimes": Sometimes(GaussianBlur(3.0), 0.5),
    "one_of": OneOf(GaussianBlur(3.0), Cutout(32), RandomScale(1.8)),
    "chain": Chain(RandomFlip(), RandomResizedCrop(80, area=(0.3, 1.0)), RandomScale()),
}
SPECTROGRAMS: dict[str, Transform] = {
    "spec_augment": SpecAugment.from_policy("LD", fill="mean"),
}


def cell() -> torch.Tensor:
    """Return one crop of the shipped cells, (3, 80, 80), dark to bright as 0 to 1."""
    table = pq.read_table(DATA, columns=["crop_id", "image"])
    row = table["crop_id"].to_pylist().index(CROP)
    chunks = table["image"][row].as_py()["chunks"]
    pixels = np.array([chunk["pixels"] for chunk in chunks], np.float32).reshape(3, 80, 80)
    low, high = np.percentile(pixels, (1, 99.8), axis=(1, 2), keepdims=True)
    return torch.from_numpy((pixels - low) / (high - low)).float()


def spectrogram() -> torch.Tensor:
    """Return the log spectrogram of a made-up voice, (1, 80, 400), about 0 to 1."""
    seconds = torch.arange(4 * 16_000) / 16_000
    pitch = 180 + 60 * torch.sin(2 * torch.pi * 0.6 * seconds) + 15 * seconds
    phase = 2 * torch.pi * torch.cumsum(pitch, 0) / 16_000
    voice = sum(torch.sin(n * phase) / n for n in range(1, 24))
    syllables = torch.sin(2 * torch.pi * 1.7 * seconds).clamp(0) ** 0.5
    noise = torch.randn(len(seconds), generator=torch.Generator().manual_seed(0))
    sound = torch.as_tensor(voice) * syllables + 0.02 * noise
    power = torch.stft(
        sound, 512, 160, window=torch.hann_window(512), return_complex=True
    ).abs()
    decibels = (power[:80, :400] + 1e-3).log10()
    return ((decibels - decibels.min()) / (decibels.max() - decibels.min()))[None]


def composite(image: torch.Tensor) -> NDArray[np.float32]:
    """Return the channels DAPI, GFP and RFP as blue, green and red, cut off at 0 and 1."""
    return np.asarray(image.flip(0).permute(1, 2, 0).clamp(0, 1).numpy())


def draw(name: str, transform: Transform) -> None:
    """Write the picture of one transform: the original and five epochs of one sample."""
    is_spectrogram = name in SPECTROGRAMS
    original = spectrogram() if is_spectrogram else cell()
    dataset = Augment([original], transform, seed=SEED)
    shown = [original]
    for epoch in range(NUM_EPOCHS):
        dataset.set_epoch(epoch)
        shown.append(dataset[0])
    shape = (2, 3) if is_spectrogram else (1, 6)
    figure, grid = plt.subplots(*shape, figsize=(7.6, 2.2 if is_spectrogram else 1.55))
    for number, (axes, image) in enumerate(zip(grid.flat, shown, strict=True)):
        if is_spectrogram:
            axes.imshow(image[0], origin="lower", aspect="auto", vmin=0, vmax=1, cmap="magma")
        else:
            axes.imshow(composite(image), interpolation="nearest")
        axes.set_title(f"epoch {number - 1}" if number else "original", fontsize=7, color=INK)
        axes.set_axis_off()
    figure.tight_layout(pad=0.8, w_pad=0.3, h_pad=0.6)
    path = FOLDER / f"augment_{name}.png"
    figure.savefig(
        path, dpi=110, bbox_inches="tight", pad_inches=0.05, pil_kwargs={"optimize": True}
    )
    plt.close(figure)


if __name__ == "__main__":
    every = PICTURES | SPECTROGRAMS
    for name in sys.argv[1:] or every:
        draw(name, every[name])
