"""SpecAugment: masks over time and frequency of a spectrogram."""

from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastloader.errors import SettingsError
from fastloader.randomness._keyed import Draws
from fastloader.transforms._bounds import check_probability, check_whole
from fastloader.transforms._masks import MaskTransform, within
from fastloader.transforms._pixels import Fill

__all__ = ["SpecAugment"]

Policy: TypeAlias = Literal["LB", "LD", "SM", "SS"]

# Table 1 of Park et al. (2019): F, m_F, T, p, m_T. The time warp W is not part of this class.
_POLICIES: Final[dict[str, tuple[int, int, int, float, int]]] = {
    "LB": (27, 1, 100, 1.0, 1),
    "LD": (27, 2, 100, 1.0, 2),
    "SM": (15, 2, 70, 0.2, 2),
    "SS": (27, 2, 70, 0.2, 2),
}


@dataclass(frozen=True)
class SpecAugment(MaskTransform):
    """Mask bands of frequencies and stretches of time, each image by itself.

    Images are spectrograms: the axis before the last is frequency, the last is time. The
    width of a mask is drawn evenly from 0 to its bound, then its start from all places where
    it fits (the last bin included; the half-open interval of the paper would never mask it).
    A bound above the length of the axis is cut to that length.

    ==========================  ==============  ====================================
    here                        the paper       torchaudio
    ==========================  ==============  ====================================
    `max_frequency_bins`        F               ``freq_mask_param`` (itself excluded)
    `num_frequency_masks`       m_F             ``n_freq_masks``
    `max_time_steps`            T               ``time_mask_param`` (itself excluded)
    `num_time_masks`            m_T             ``n_time_masks``
    `max_time_share`            p               ``p`` (itself excluded below 1)
    `max_frequency_share`       -               ``p`` (alike)
    probability of application  -               -  (write ``Sometimes(SpecAugment())``)
    ==========================  ==============  ====================================

    `from_policy` and `from_torchaudio` fill these in. The time warp of the paper is left out:
    the authors found it the least useful part and the most costly.

    References:
        D. S. Park et al., "SpecAugment: a simple data augmentation method for automatic speech
        recognition", Interspeech 2019, 2613-2617, arXiv:1904.08779.
    """

    max_frequency_bins: int = 27
    """Widest mask over frequency, in bins."""
    num_frequency_masks: int = 1
    """Masks over frequency in each image; they may overlap."""
    max_time_steps: int = 100
    """Widest mask over time, in steps."""
    num_time_masks: int = 1
    """Masks over time in each image; they may overlap."""
    max_frequency_share: float = 1.0
    """Largest share of all bins that one mask may cover."""
    max_time_share: float = 1.0
    """Largest share of all steps that one mask may cover."""
    max_total_share: float = 1.0
    """Largest share of an axis that its masks may cover together; the later ones get
    narrower."""
    includes_bound: bool = True
    """Whether a mask may be as wide as its bound, in number or share: the paper draws from 0 to
    F included, torchaudio from 0 to F - 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (
            "max_frequency_bins",
            "num_frequency_masks",
            "max_time_steps",
            "num_time_masks",
        ):
            check_whole(name, getattr(self, name), 0)
        for name in ("max_frequency_share", "max_time_share", "max_total_share"):
            check_probability(name, getattr(self, name))

    @classmethod
    def from_policy(cls, policy: Policy, *, fill: Fill = 0.0) -> Self:
        """Return one of the four policies of the paper, table 1.

        Args:
            policy: ``"LB"`` and ``"LD"`` (LibriSpeech basic and double), ``"SM"`` and ``"SS"``
                (Switchboard mild and strong).
            fill: What masked values become; 0 is the mean where, as in the paper, the
                spectrogram has zero mean.

        Raises:
            SettingsError: If there is no such policy.
        """
        if policy not in _POLICIES:
            raise SettingsError(f"policy must be one of {list(_POLICIES)}, but got {policy!r}.")
        bins, num_frequency, steps, share, num_time = _POLICIES[policy]
        return cls(
            max_frequency_bins=bins,
            num_frequency_masks=num_frequency,
            max_time_steps=steps,
            num_time_masks=num_time,
            max_time_share=share,
            fill=fill,
        )

    @classmethod
    def from_torchaudio(
        cls,
        *,
        n_time_masks: int,
        time_mask_param: int,
        n_freq_masks: int,
        freq_mask_param: int,
        p: float = 1.0,
        zero_masking: bool = False,
    ) -> Self:
        """Return what ``torchaudio.transforms.SpecAugment`` does with the same arguments.

        As with its ``iid_masks=True`` each image is masked by itself. It differs in that all
        channels of an image have the same masks, in that the mean is that of each channel of
        each image, not of the whole batch, and in that an axis shorter than the mask is masked
        up to the whole.

        Args:
            n_time_masks: Masks over time.
            time_mask_param: Bound of their width, itself never reached.
            n_freq_masks: Masks over frequency.
            freq_mask_param: Bound of their width, itself never reached.
            p: Bound of the share of all steps that one mask covers and, though torchaudio's
                documentation does not say so, of all bins; itself never reached below 1.
            zero_masking: Whether masked values become 0 rather than the mean.
        """
        return cls(
            max_frequency_bins=freq_mask_param,
            num_frequency_masks=n_freq_masks,
            max_time_steps=time_mask_param,
            num_time_masks=n_time_masks,
            max_frequency_share=p,
            max_time_share=p,
            includes_bound=False,
            fill=0.0 if zero_masking else "mean",
        )

    def mask(self, shape: torch.Size, draws: Draws) -> NDArray[np.bool_]:
        """Mask bands and stretches; see `MaskTransform.mask`."""
        bins = self._covered(
            draws,
            shape[2],
            self.max_frequency_bins,
            self.max_frequency_share,
            self.num_frequency_masks,
        )
        steps = self._covered(
            draws, shape[3], self.max_time_steps, self.max_time_share, self.num_time_masks
        )
        return (bins[:, :, None] | steps[:, None, :])[:, None]

    def _covered(
        self, draws: Draws, size: int, bound: int, share: float, num_masks: int
    ) -> NDArray[np.bool_]:
        """Return which positions of an axis are masked, shape (N, size)."""
        # torchaudio leaves out the bound itself, or the share where that is narrower; but an
        # axis that is shorter is not the bound.
        limit = bound if share == 1 else min(bound, _share_of(size, share))
        widest = min(limit if self.includes_bound else max(limit - 1, 0), size)
        widths = draws.integers(0, widest + 1, num_masks)
        used = np.cumsum(widths, axis=1) - widths
        widths = np.clip(_share_of(size, self.max_total_share) - used, 0, widths)
        starts = draws.integers(0, size - widths + 1, num_masks)
        return np.asarray(np.any(within(starts, starts + widths, size), axis=1))


def _share_of(size: int, share: float) -> int:
    # 0.29 * 100 is 28.999999999999996 in binary.
    return int(share * size + 1e-9)
