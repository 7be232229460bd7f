import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader.errors import SettingsError
from fastloader.transforms import ChannelDrop, Cutout, Draws, MaskTransform, SpecAugment
from fastloader.transforms._pixels import mean_of_planes


def draws(count=1, seed=0):
    return Draws.of(seed, 0, range(count))


def masked(transform, count=1, channels=1, height=20, width=30, seed=0):
    """Return which pixels a transform that fills with 0 has masked."""
    images = torch.ones(count, channels, height, width)
    return transform(images, draws(count, seed)) == 0


def runs(flags):
    """Return the lengths of the stretches of True."""
    lengths, current = [], 0
    for flag in [*flags.tolist(), False]:
        if flag:
            current += 1
        elif current:
            lengths.append(current)
            current = 0
    return lengths


def test_channels_are_dropped_as_often_as_asked():
    dropped = masked(ChannelDrop(0.3, keep_one=False), 4000, 4, 2, 2)

    assert torch.equal(dropped.all((2, 3)), dropped.any(3).any(2))
    assert abs(dropped[:, :, 0, 0].double().mean() - 0.3) < 0.01


def test_one_channel_stays_and_it_is_any():
    dropped = masked(ChannelDrop(1.0), 400, 4, 2, 2)[:, :, 0, 0]

    assert (dropped.sum(1) == 3).all()
    assert all(70 < count < 130 for count in (~dropped).sum(0))


@given(seed=st.integers(0, 2**64 - 1), height=st.integers(1, 25), width=st.integers(1, 25))
def test_a_hole_is_a_rectangle_of_the_size_or_cut_by_the_edge(seed, height, width):
    mask = masked(Cutout((height, width)), seed=seed)[0, 0]

    rows, columns = runs(mask.any(1)), runs(mask.any(0))
    assert len(rows) == len(columns) == 1
    assert mask.sum() == rows[0] * columns[0]
    assert rows[0] == height or mask[0].any() or mask[-1].any()
    assert columns[0] == width or mask[:, 0].any() or mask[:, -1].any()


def test_a_hole_is_in_all_channels():
    mask = masked(Cutout(5), 3, 4)

    assert torch.equal(mask, mask[:, :1].expand_as(mask))


def test_several_holes_are_in_several_places():
    areas = [masked(Cutout(4, num_holes=n), 500).double().mean() for n in (1, 3)]

    assert 2 < areas[1] / areas[0] < 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32], ids=str)
def test_the_fill_may_be_a_number(dtype):
    images = torch.ones(1, 2, 9, 9).to(dtype)

    filled = Cutout(4, fill=200)(images, draws())

    assert set(filled.flatten().tolist()) == {1, 200}


def test_the_fill_may_be_the_mean_of_each_channel_of_each_image():
    images = torch.rand(5, 3, 9, 7, generator=torch.Generator().manual_seed(0))
    mask = masked(Cutout(4), 5, 3, 9, 7)

    filled = Cutout(4, fill="mean")(images, draws(5))

    means = images.mean((2, 3), keepdim=True).expand_as(images)
    assert torch.allclose(filled[mask], means[mask])
    assert torch.equal(filled[~mask], images[~mask])


def test_labels_are_not_masked():
    labels = torch.ones(2, 1, 9, 9)

    assert torch.equal(Cutout(4).batch(labels, draws(2), are_labels=True), labels)


widths = st.integers(0, 40)
shares = st.floats(0, 1)


@given(seed=st.integers(0, 2**32), bins=widths, steps=widths, share=shares)
def test_a_mask_is_within_its_bound_and_its_share(seed, bins, steps, share):
    transform = SpecAugment(
        max_frequency_bins=bins,
        max_time_steps=steps,
        max_frequency_share=share,
        max_time_share=share,
    )

    mask = masked(transform, seed=seed)[0, 0]

    in_time, in_frequency = runs(mask.all(0)), runs(mask.all(1))
    if not mask.all():
        assert sum(in_time) <= min(steps, 30 * share + 1e-6)
        assert sum(in_frequency) <= min(bins, 20 * share + 1e-6)
        assert len(in_time) <= 1
        assert len(in_frequency) <= 1


@given(seed=st.integers(0, 2**32), share=shares, num_masks=st.integers(0, 5))
def test_all_masks_together_are_within_the_total_share(seed, share, num_masks):
    transform = SpecAugment(
        max_frequency_bins=0,
        max_time_steps=15,
        num_time_masks=num_masks,
        max_total_share=share,
    )

    assert masked(transform, seed=seed)[0, 0].all(0).sum() <= 30 * share + 1e-6


def time_widths(count=4000, width=30, **options):
    transform = SpecAugment(num_frequency_masks=0, **options)
    return masked(transform, count, 1, 2, width)[:, 0, 0].sum(1)


def test_widths_are_even_from_0_to_the_bound_of_the_paper():
    counts = time_widths(max_time_steps=3).bincount()

    assert len(counts) == 4
    assert all(880 < count < 1120 for count in counts)


def test_the_bound_of_torchaudio_is_itself_left_out():
    transform = SpecAugment.from_torchaudio(
        n_time_masks=1, time_mask_param=3, n_freq_masks=0, freq_mask_param=0, zero_masking=True
    )

    counts = masked(transform, 4000, 1, 2, 30)[:, 0, 0].sum(1).bincount()

    assert len(counts) == 3
    assert all(1200 < count < 1470 for count in counts)


def test_an_axis_shorter_than_the_mask_is_masked_up_to_the_whole():
    counts = time_widths(width=4, max_time_steps=100).bincount()

    assert len(counts) == 5
    assert all(680 < count < 920 for count in counts)


def test_every_position_can_be_masked_the_last_too():
    mask = masked(SpecAugment(num_frequency_masks=0, max_time_steps=5), 2000)[:, 0, 0]

    assert (mask.sum(0) > 50).all()


def test_masks_of_a_batch_are_independent():
    mask = masked(SpecAugment(max_frequency_bins=9, max_time_steps=9), 50)

    assert len(mask.flatten(1).unique(dim=0)) > 45


def test_masks_cover_all_channels():
    mask = masked(SpecAugment(max_frequency_bins=9, max_time_steps=9), 5, 3)

    assert torch.equal(mask, mask[:, :1].expand_as(mask))


@pytest.mark.parametrize(
    ("policy", "numbers"),
    [
        ("LB", (27, 1, 100, 1.0, 1)),
        ("LD", (27, 2, 100, 1.0, 2)),
        ("SM", (15, 2, 70, 0.2, 2)),
        ("SS", (27, 2, 70, 0.2, 2)),
    ],
)
def test_policies_are_those_of_the_paper(policy, numbers):
    transform = SpecAugment.from_policy(policy)

    assert numbers == (
        transform.max_frequency_bins,
        transform.num_frequency_masks,
        transform.max_time_steps,
        transform.max_time_share,
        transform.num_time_masks,
    )


def test_the_mean_is_the_fill_of_torchaudio():
    make = SpecAugment.from_torchaudio

    transform = make(
        n_time_masks=2, time_mask_param=9, n_freq_masks=1, freq_mask_param=5, p=0.4
    )

    assert transform.fill == "mean"


def test_the_share_of_torchaudio_is_that_of_both_axes_and_itself_left_out():
    transform = SpecAugment.from_torchaudio(
        n_time_masks=1, time_mask_param=9, n_freq_masks=1, freq_mask_param=9, p=0.2
    )
    changed = masked(dataclasses.replace(transform, fill=0.0), 3000, 1, 20, 15)[:, 0]

    assert changed.all(1).sum(1).unique().tolist() == [0, 1, 2]  # of 15 steps, below 3
    assert changed.all(2).sum(1).unique().tolist() == [0, 1, 2, 3]  # of 20 bins, below 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChannelDrop(-0.1), "probability must be from 0 to 1"),
        (lambda: Cutout(0), "size must be"),
        (lambda: Cutout(num_holes=0), "num_holes must be a whole number of at least 1"),
        (lambda: Cutout(num_holes=1.5), "num_holes must be a whole number"),
        (lambda: Cutout(fill="median"), 'fill must be a number or "mean"'),
        (
            lambda: SpecAugment(max_time_steps=-1),
            "max_time_steps must be a whole number of at least 0",
        ),
        (
            lambda: SpecAugment(max_frequency_bins=2.5),
            "max_frequency_bins must be a whole number",
        ),
        (lambda: SpecAugment(max_time_share=1.5), "max_time_share must be from 0 to 1"),
        (lambda: SpecAugment.from_policy("XL"), "policy must be one of"),
    ],
    ids=range(9),
)
def test_a_wrong_argument_is_named(make, message):
    with pytest.raises(SettingsError, match=message):
        make()


def test_a_mask_of_ones_own_needs_one_method():
    with pytest.raises(NotImplementedError, match=r"must define mask"):
        MaskTransform()(torch.zeros(1, 2, 2))


@pytest.mark.parametrize("size", [(3, 5), (64, 64), (101, 103), (300, 200)], ids=str)
def test_the_mean_of_a_plane_does_not_depend_on_the_others(size):
    images = torch.randn(40, 3, *size) * 10.0 ** torch.randint(-4, 4, (40, 3, *size))

    means = mean_of_planes(images)

    alone = [mean_of_planes(image[None, None]) for image in images.flatten(0, 1)]
    assert torch.equal(means.flatten(), torch.cat(alone).flatten())
    assert torch.allclose(means, images.double().mean((2, 3), keepdim=True), rtol=1e-9)
