"""Decoded images that all processes of a machine share."""

from fastloader.cache._disk_file import default_cache_folder, disk_cache_path
from fastloader.cache._disk_folder import CacheFile, find_cache_files, remove_cache_files
from fastloader.cache._image_cache import Decode, ImageCache
from fastloader.cache._layout import PixelLayout
from fastloader.cache._open import open_disk_cache, open_shared_cache
from fastloader.cache._own_images import OwnImages, find_own_images, load_own_images
from fastloader.cache._packed import PackedImages
from fastloader.cache._pixel_bytes import PrivatePixels
from fastloader.cache._promised import promised_bytes
from fastloader.cache._units import choose_units

__all__ = [
    "CacheFile",
    "Decode",
    "ImageCache",
    "OwnImages",
    "PackedImages",
    "PixelLayout",
    "PrivatePixels",
    "choose_units",
    "default_cache_folder",
    "disk_cache_path",
    "find_cache_files",
    "find_own_images",
    "load_own_images",
    "open_disk_cache",
    "open_shared_cache",
    "promised_bytes",
    "remove_cache_files",
]
