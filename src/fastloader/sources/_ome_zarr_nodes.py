"""Finds the images of OME-Zarr stores: single ones, collections, plates and folders of stores."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, NoReturn

from fastloader.errors import ImageDataError, SourceError
from fastloader.sources._file_search import (
    ZARR_METADATA,
    is_zarr_node,
    natural_order,
    walk_folders,
)
from fastloader.sources._file_tree import FileTree
from fastloader.sources._zarr_array import read_json

__all__ = ["OmeZarrNode", "find_nodes", "holds_store", "read_attributes"]

Columns = dict[str, str | int | None]

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


def _is_zarr_node(tree: FileTree, inside: str) -> bool:
    """Tell whether a folder is a Zarr group or array."""
    return any(tree.is_file(_at(inside, name)) for name in ZARR_METADATA)


def holds_store(tree: FileTree) -> bool:
    """Tell whether a folder is a Zarr store or has one somewhere; stops at the first."""
    return next(_stores_in(tree), None) is not None


def find_nodes(tree: FileTree, stores: Sequence[str] = ()) -> list[OmeZarrNode]:
    """Return all images under a folder, or in a store, in natural order.

    Groups of labels are left out.

    Args:
        tree: A store, a group inside of one, or a folder of stores at any depth.
        stores: Paths of the stores in it, if they are known; they are looked for otherwise.

    Raises:
        SourceError: If there are none; the message says what is there instead.
        ImageDataError: If metadata make no sense.
    """

    def look_in(store: str) -> list[OmeZarrNode]:
        folder, name = tree.names(store)[-2:]
        columns: Columns = {"file_name": name, "folder": folder}
        return list(_images_in(tree, store, columns)) or _complain(tree, store)

    found = tree.each(look_in, stores or _find_stores(tree))
    return [node for nodes in found for node in nodes]


def _find_stores(tree: FileTree) -> list[str]:
    """Return the paths of all stores, in natural order.

    Raises:
        SourceError: If there are none.
    """
    # Asked first, since a server that has the store may not be able to list it.
    stores = [""] if _is_zarr_node(tree, "") else list(_stores_in(tree))
    if not stores:
        raise SourceError(
            f"{tree.where} has no Zarr group in it or its subfolders: expected OME-Zarr stores, "
            f"which hold a file zarr.json or .zgroup."
        )
    return sorted(stores, key=lambda store: natural_order(tree.plain(store)))


def _stores_in(tree: FileTree) -> Iterator[str]:
    """Yield the path of each store, not looking for others inside of one."""
    found: list[str] = []

    def descends(inside: str, files: Sequence[str]) -> bool:
        is_store = is_zarr_node(files)
        if is_store:
            found.append(inside.rstrip("/"))
        return not is_store

    for _ in walk_folders(tree, descends):
        yield from found
        found.clear()
    yield from found


def _images_in(tree: FileTree, path: str, columns: Columns) -> Iterator[OmeZarrNode]:
    """Yield the images of a group, whatever kind it is."""
    attributes = read_attributes(tree, path)
    if attributes is None:
        return
    if "multiscales" in attributes:
        yield OmeZarrNode(path, attributes, {"path": tree.plain(path), **columns})
    elif "plate" in attributes:
        yield from _images_of_plate(tree, path, attributes["plate"], columns)
    elif "well" in attributes:
        missing: list[str] = []
        yield from _images_of_well(tree, path, attributes["well"], columns, missing)
        _tell_missing(tree, path, missing)
    else:
        for name in _children(tree, path, attributes):
            inside = _join(path, name)
            yield from _images_in(tree, inside, {**columns, "image": name})


def _children(tree: FileTree, path: str, attributes: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's groups: of the images of a bioformats2raw collection."""
    if "bioformats2raw.layout" in attributes:
        listed = (read_attributes(tree, _at(path, "OME")) or {}).get("series")
        if isinstance(listed, list) and all(isinstance(name, str) for name in listed):
            return listed
    names = [
        name
        for name in tree.list_folder(path)[0]
        if name not in {_LABELS, "OME"} and _is_zarr_node(tree, _at(path, name))
    ]
    return sorted(names, key=natural_order)


def _images_of_plate(
    tree: FileTree, path: str, plate: Any, columns: Columns
) -> Iterator[OmeZarrNode]:
    """Yield the fields of all wells that are there: plates are often imaged in part.

    Raises:
        ImageDataError: If the metadata make no sense.
    """
    try:
        name = plate.get("name") or tree.names(path)[-1]
        wells = [str(well["path"]) for well in plate["wells"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ImageDataError(
            f"{tree.path(path)}: its plate makes no sense ({type(error).__name__}: {error}): expected "
            f"a list of wells, each with a path."
        ) from error
    more: Columns = {**columns, "plate": str(name)}

    missing: list[str] = []

    def look_in(well: str) -> list[OmeZarrNode]:
        inside = _join(path, well)
        attributes = read_attributes(tree, inside)
        if attributes is None or "well" not in attributes:
            missing.append(inside)
            return []
        return list(_images_of_well(tree, inside, attributes["well"], more, missing))

    for nodes in tree.each(look_in, sorted(wells, key=natural_order)):
        yield from nodes
    _tell_missing(tree, path, missing)


def _images_of_well(
    tree: FileTree, path: str, well: Any, columns: Columns, missing: list[str]
) -> Iterator[OmeZarrNode]:
    """Yield the fields of a well that are there, and add the paths of the others to a list.

    Raises:
        ImageDataError: If the metadata make no sense.
    """
    try:
        fields = [(str(field["path"]), field.get("acquisition")) for field in well["images"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise ImageDataError(
            f"{tree.path(path)}: its well makes no sense ({type(error).__name__}: {error}): expected "
            f"a list of images, each with a path."
        ) from error
    row, column = tree.names(path)[-2:]
    for field, acquisition in fields:
        inside = _join(path, field)
        attributes = read_attributes(tree, inside)
        if attributes is None or "multiscales" not in attributes:
            missing.append(inside)
            continue
        place: Columns = {
            "path": tree.plain(inside),
            "well": f"{row}{column}",
            "well_row": row,
            "well_column": column,
            "field": field,
        }
        if acquisition is not None:
            place["acquisition"] = str(acquisition)
        yield OmeZarrNode(inside, attributes, {**columns, **place})


def _tell_missing(tree: FileTree, path: str, missing: list[str]) -> None:
    """Warn of wells or fields that metadata list but that are not there."""
    if missing:
        names = ", ".join(sorted(missing, key=natural_order)[:5])
        warnings.warn(
            f"{tree.path(path)} lists {len(missing)} wells or fields that are not there ({names}"
            f"{', ...' if len(missing) > 5 else ''}): the others are read.",
            stacklevel=2,
        )


def _join(path: str, name: str) -> str:
    """Return a path inside a group.

    Raises:
        ImageDataError: If the name leads out of it.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ImageDataError(
            f"{path or 'The store'}: a path in its metadata, {name!r}, leads out."
        )
    return _at(path, name)


def _at(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if folder else name


def read_attributes(tree: FileTree, inside: str) -> Mapping[str, Any] | None:
    """Return the attributes of a group, those of OME-Zarr 0.5 taken out of their envelope.

    Args:
        tree: What it is in.
        inside: The group's path there; None is returned if it is none.

    Raises:
        ImageDataError: If they are no mapping.
    """
    metadata = read_json(tree, _at(inside, "zarr.json"))
    if metadata is not None:
        attributes = metadata.get("attributes") or {}
    elif tree.is_file(_at(inside, ".zgroup")):
        attributes = read_json(tree, _at(inside, ".zattrs")) or {}
    else:
        return None
    inner = attributes.get("ome", attributes) if isinstance(attributes, dict) else None
    if not isinstance(inner, dict):
        raise ImageDataError(
            f"{tree.path(inside)}: expected attributes by name, but got {attributes!r:.100}."
        )
    return inner


def _complain(tree: FileTree, store: str) -> NoReturn:
    """Say what a store holds in place of images.

    Raises:
        SourceError: Always.
    """
    where = tree.path(store)
    is_array = tree.is_file(_at(store, ".zarray"))
    metadata = read_json(tree, _at(store, "zarr.json")) or {}
    if is_array or metadata.get("node_type") == "array":
        raise SourceError(
            f"{where} is a Zarr array without OME-Zarr metadata, which say what its axes are: "
            f"give the group above it, if that has multiscales."
        )
    attributes = read_attributes(tree, store) or {}
    folders = tree.list_folder(store)[0]
    groups = sorted(name for name in folders if _is_zarr_node(tree, _at(store, name)))
    has = f"the attributes {', '.join(map(repr, attributes)) or 'none'}"
    raise SourceError(
        f"{where} is a Zarr group without an image: expected multiscales, a plate, a well or "
        f"groups that have them, but it has {has} and inside it "
        f"{', '.join(map(repr, groups[:10])) or 'nothing'}."
    )
