"""Read images from storage: one module per format."""

from fastloader.sources._ome_arrow_schema import ome_arrow_type

__all__ = ["ome_arrow_type"]
