"""Random changes of images, keyed by sample: the same for one image, a batch and a GPU."""

from fastloader.randomness._keyed import Draws
from fastloader.transforms._blur import GaussianBlur
from fastloader.transforms._choices import Chain, OneOf, Sometimes
from fastloader.transforms._geometry import RandomCrop, RandomFlip, RandomQuarterTurn
from fastloader.transforms._intensity import (
    GaussianNoise,
    RandomGamma,
    RandomScale,
    RandomShift,
)
from fastloader.transforms._masks import ChannelDrop, Cutout, MaskTransform
from fastloader.transforms._pixels import per_image
from fastloader.transforms._resized_crop import RandomResizedCrop
from fastloader.transforms._spec_augment import SpecAugment
from fastloader.transforms._transform import (
    GeometricTransform,
    IntensityTransform,
    Transform,
)

__all__ = [
    "Chain",
    "ChannelDrop",
    "Cutout",
    "Draws",
    "GaussianBlur",
    "GaussianNoise",
    "GeometricTransform",
    "IntensityTransform",
    "MaskTransform",
    "OneOf",
    "RandomCrop",
    "RandomFlip",
    "RandomGamma",
    "RandomQuarterTurn",
    "RandomResizedCrop",
    "RandomScale",
    "RandomShift",
    "Sometimes",
    "SpecAugment",
    "Transform",
    "per_image",
]
