"""Write images as OME-Arrow tables."""

from fastloader.writing._table_formats import TABLE_FORMATS
from fastloader.writing._write import Compression, WrittenTable, convert, write_images

__all__ = ["TABLE_FORMATS", "Compression", "WrittenTable", "convert", "write_images"]
