"""Draw `batch_path.svg`: how a batch travels.

python docs/pictures/draw_batch_path.py [--png FILE]
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK = "#22303c"
MAIN = "#e8f1f0"
WORKER = "#f6efe1"
MEMORY = "#dfe6f3"
ACCENT = "#1b7f79"


def box(
    axes: Axes, x: float, y: float, size: tuple[float, float], text: str, fill: str
) -> None:
    """Draw a box with its lower left corner at (x, y): a bold first line, smaller others."""
    width, height = size
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            fc=fill,
            ec=INK,
            lw=1,
        )
    )
    first, _, rest = text.partition("\n")
    middle = x + width / 2
    num_lines = rest.count("\n") + 1 if rest else 0
    top = y + height / 2 + 0.13 * num_lines
    axes.text(
        middle, top, first, ha="center", va="center", fontsize=9.5, weight="bold", color=INK
    )
    if rest:
        axes.text(
            middle,
            top - 0.17,
            rest,
            ha="center",
            va="top",
            fontsize=8,
            color=INK,
            linespacing=1.25,
        )


def frame(
    axes: Axes,
    x: float,
    y: float,
    size: tuple[float, float],
    title: str,
    *,
    below: bool = False,
) -> None:
    """Draw the dashed outline of a process, its title above or below what it holds."""
    axes.add_patch(
        FancyBboxPatch(
            (x, y),
            *size,
            boxstyle="round,pad=0,rounding_size=0.15",
            fc="none",
            ec=INK,
            lw=0.9,
            ls="--",
        )
    )
    title_y = y + 0.22 if below else y + size[1] - 0.22
    axes.text(x + 0.15, title_y, title, fontsize=8.5, style="italic", color=INK, va="center")


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    *,
    at: tuple[float, float] | None = None,
    bend: float = 0.0,
    colour: str = INK,
    dashed: bool = False,
) -> None:
    """Draw an arrow, and its text beside it or at a place of its own."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            lw=1.3,
            color=colour,
            ls="--" if dashed else "-",
            connectionstyle=f"arc3,rad={bend}",
        )
    )
    if text:
        x, y = at or ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2 + 0.13)
        axes.text(
            x, y, text, fontsize=7.8, color=colour, ha="center", va="center", linespacing=1.2
        )


def draw(axes: Axes) -> None:
    """Draw the whole way, from the order to the training loop."""
    axes.set(xlim=(0, 14), ylim=(0, 6.3), aspect="equal")
    axes.axis("off")

    frame(axes, 0.1, 3.55, (13.8, 2.65), "training process")
    box(axes, 0.4, 4.2, (1.9, 1.3), "Order\nsampler gives the\nindices of a batch", MAIN)
    box(axes, 3.1, 4.2, (2.1, 1.3), "Engine\ntasks out, replies in\norder, errors, seeds", MAIN)
    box(
        axes,
        8.1,
        4.2,
        (2.5, 1.3),
        "Receive\ntensors over the slot,\na pinned copy, or\na copy to the device",
        MAIN,
    )
    box(axes, 11.7, 4.2, (1.9, 1.3), "Training loop\nfor batch in loader", MAIN)

    frame(axes, 2.6, 0.2, (4.9, 2.3), "worker process (one of several)", below=True)
    box(
        axes,
        2.85,
        0.75,
        (2.1, 1.5),
        "Fetch\ndataset.get_batch(indices)\nor dataset[i] for each",
        WORKER,
    )
    box(axes, 5.5, 0.75, (1.8, 1.5), "Collate\nwrites each sample\nonce, into the slot", WORKER)
    box(axes, 8.9, 0.75, (4.6, 1.5), "Slots\nshared memory, used again and again\n\n", MEMORY)
    for index, state in enumerate(("free", "lent", "in use", "free")):
        x = 9.15 + index * 1.07
        fill = ACCENT if state in {"lent", "in use"} else "white"
        axes.add_patch(
            FancyBboxPatch(
                (x, 0.92),
                0.9,
                0.38,
                boxstyle="round,pad=0,rounding_size=0.06",
                fc=fill,
                ec=INK,
                lw=0.8,
            )
        )
        axes.text(
            x + 0.45,
            1.11,
            state,
            fontsize=7.5,
            ha="center",
            va="center",
            color="white" if fill == ACCENT else INK,
        )

    arrow(axes, (2.3, 4.85), (3.1, 4.85))
    arrow(axes, (3.9, 4.2), (3.9, 2.25), "indices,\nseed, epoch,\na free slot", at=(3.25, 3.2))
    arrow(axes, (4.95, 1.5), (5.5, 1.5))
    arrow(
        axes,
        (7.3, 1.5),
        (8.9, 1.5),
        "the only copy\non the host",
        at=(8.15, 1.83),
        colour=ACCENT,
    )
    arrow(
        axes,
        (6.4, 2.25),
        (4.75, 4.2),
        "reply: shapes, types and\noffsets, a few hundred bytes",
        at=(6.95, 3.2),
    )
    arrow(axes, (5.2, 4.85), (8.1, 4.85), "which slot, what layout")
    arrow(axes, (9.9, 2.25), (9.4, 4.2), "mapped, not sent", at=(9.0, 2.95), colour=ACCENT)
    arrow(axes, (10.6, 4.85), (11.7, 4.85))
    arrow(
        axes,
        (12.65, 4.2),
        (12.2, 2.25),
        "the last tensor over\nthe slot is gone:\nfree again",
        at=(13.2, 3.0),
        dashed=True,
    )


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Draw how a batch travels.")
    parser.add_argument("--png", type=Path, help="also write a PNG")
    arguments = parser.parse_args()
    mpl.rcParams["svg.hashsalt"] = "batch_path"  # the same picture gives the same file
    figure, axes = plt.subplots(figsize=(11, 5))
    figure.subplots_adjust(0, 0, 1, 1)
    draw(axes)
    figure.savefig(Path(__file__).parent / "batch_path.svg", metadata={"Date": None})
    if arguments.png:
        figure.savefig(arguments.png, dpi=110)


if __name__ == "__main__":
    main()
