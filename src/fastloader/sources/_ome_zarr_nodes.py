"""Finds the images of OME-Zarr stores: single ones, collections, plates and folders of stores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._file_search import natural_order, walk_folders
from fastloader.sources._zarr_array import read_json

__all__ = ["OmeZarrNode", "find_nodes", "is_zarr_node", "read_attributes"]

Columns = dict[str, str | int | None]

_METADATA = ("zarr.json", ".zgroup", ".zarray")
_LABELS = "labels"


@dataclass(frozen=True, slots=True)
class OmeZarrNode:
    """A group with ``multiscales``: one image."""

    path: str
    """Relative to where the search began, ``""`` for the place itself."""
    attributes: Mapping[str, Any]
    """Of OME-Zarr, whatever its version."""
    columns: Columns
    """What its place says."""


def is_zarr_node(folder: Path) -> bool:
    """Tell whether a folder is a Zarr group or array.

    Args:
        folder: A folder.
    """
    return any((folder / name).is_file() for name in _METADATA)


def find_nodes(root: str) -> list[OmeZarrNode]:
    """Return all images under a folder, or in a store, in natural order.

    Groups of labels are left out.

    Args:
        root: A store, a group inside of one, or a folder of stores at any depth.

    Raises:
        SourceError: If there are none; the message says what is there instead.
        ImageDataError: If metadata make no sense.
    """
    top = Path(root)
    stores: list[str] = []

    def descends(folder: str) -> bool:
        is_store = is_zarr_node(Path(folder))
        if is_store:
            inside = Path(folder).relative_to(top).as_posix()
            stores.append("" if inside == "." else inside)
        return not is_store

    for _ in walk_folders(root, descends):
        pass
    if not stores:
        raise SourceError(
            f"{root} has no Zarr group in it or its subfolders: expected OME-Zarr stores, which "
            f"hold a file zarr.json or .zgroup."
        )
    found: list[OmeZarrNode] = []
    for store in sorted(stores, key=natural_order):
        place = (top / store).resolve()
        columns: Columns = {
            "path": store,
            "file_name": place.name,
            "folder": place.parent.name,
        }
        nodes = list(_images_in(top, store, columns))
        if not nodes:
            raise SourceError(_nothing_found(top / store))
        found += nodes
    return found


def _images_in(root: Path, path: str, columns: Columns) -> Iterator[OmeZarrNode]:
    """Yield the images of a group, whatever kind it is."""
    attributes = read_attributes(root / path)
    if attributes is None:
        return
    if "multiscales" in attributes:
        yield OmeZarrNode(path, attributes, {**columns, "path": path or columns["path"]})
    elif "plate" in attributes:
        yield from _images_of_plate(root, path, attributes["plate"], columns)
    elif "well" in attributes:
        yield from _images_of_well(root, path, attributes["well"], columns)
    else:
        for name in _children(root, path, attributes):
            inside = _join(path, name)
            yield from _images_in(root, inside, {**columns, "image": name})


def _children(root: Path, path: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's groups: of the images of a bioformats2raw collection."""
    if "bioformats2raw.layout" in attributes:
        listed = (read_attributes(root / path / "OME") or {}).get("series")
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            return listed
    names = [
        entry.name
        for entry in (root / path).iterdir()
        if entry.is_dir() and entry.name not in {_LABELS, "OME"} and is_zarr_node(entry)
    ]
    return sorted(names, key=natural_order)


def _images_of_plate(
    root: Path, path: str, plate: Any, columns: Columns
) -> Iterator[OmeZarrNode]:
    """Yield the fields of all wells.

    Raises:
        ImageDataError: If the metadata make no sense.
        SourceError: If a well is listed but not there.
    """
    try:
        name = plate.get("name") or Path(root / path).resolve().name
        wells = [str(well["path"]) for well in plate["wells"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ImageDataError(
            f"{root / path}: its plate makes no sense ({type(error).__name__}: {error}): expected "
            f"a list of wells, each with a path."
        ) from error
    for well in sorted(wells, key=natural_order):
        inside = _join(path, well)
        attributes = read_attributes(root / inside)
        if attributes is None or "well" not in attributes:
            raise SourceError(f"{root / inside} is a well of plate {name!r}, but is not there.")
        more: Columns = {**columns, "plate": str(name)}
        yield from _images_of_well(root, inside, attributes["well"], more)


def _images_of_well(
    root: Path, path: str, well: Any, columns: Columns
) -> Iterator[OmeZarrNode]:
    """Yield the fields of a well.

    Raises:
        ImageDataError: If the metadata make no sense.
        SourceError: If a field is listed but not there.
    """
    try:
        fields = [(str(field["path"]), field.get("acquisition")) for field in well["images"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ImageDataError(
            f"{root / path}: its well makes no sense ({type(error).__name__}: {error}): expected "
            f"a list of images, each with a path."
        ) from error
    row, column = (root / path).resolve().parts[-2:]
    for field, acquisition in fields:
        inside = _join(path, field)
        attributes = read_attributes(root / inside)
        if attributes is None or "multiscales" not in attributes:
            raise SourceError(f"{root / inside} is a field of a well, but is no image there.")
        place: Columns = {
            "path": inside,
            "well": f"{row}{column}",
            "well_row": row,
            "well_column": column,
            "field": field,
        }
        if acquisition is not None:
            place["acquisition"] = str(acquisition)
        yield OmeZarrNode(inside, attributes, {**columns, **place})


def _join(path: str, name: str) -> str:
    """Return a path inside a group.

    Raises:
        ImageDataError: If the name leads out of it.
    """
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts:
        raise ImageDataError(
            f"{path or 'The store'}: a path in its metadata, {name!r}, leads out."
        )
    return f"{path}/{name}" if path else name


def read_attributes(folder: Path) -> Mapping[str, Any] | None:
    """Return the attributes of a group, those of OME-Zarr 0.5 taken out of their envelope.

    Args:
        folder: The group; None is returned if it is none.

    Raises:
        ImageDataError: If they are no mapping.
    """
    metadata = read_json(folder / "zarr.json")
    if metadata is not None:
        attributes = metadata.get("attributes") or {}
    elif (folder / ".zgroup").is_file():
        attributes = read_json(folder / ".zattrs") or {}
    else:
        return None
    inner = attributes.get("ome", attributes) if isinstance(attributes, dict) else None
    if not isinstance(inner, dict):
        raise ImageDataError(
            f"{folder}: expected attributes by name, but got {attributes!r:.100}."
        )
    return inner


def _nothing_found(folder: Path) -> str:
    """Return a message that says what a store holds in place of images."""
    if (folder / ".zarray").is_file() or (read_json(folder / "zarr.json") or {}).get(
        "node_type"
    ) == "array":
        return (
            f"{folder} is a Zarr array without OME-Zarr metadata, which say what its axes are: "
            f"give the group above it, if that has multiscales."
        )
    attributes = read_attributes(folder) or {}
    groups = sorted(entry.name for entry in folder.iterdir() if is_zarr_node(entry))
    has = f"the attributes {', '.join(map(repr, attributes)) or 'none'}"
    return (
        f"{folder} is a Zarr group without an image: expected multiscales, a plate, a well or "
        f"groups that have them, but it has {has} and inside it "
        f"{', '.join(map(repr, groups[:10])) or 'nothing'}."
    )
