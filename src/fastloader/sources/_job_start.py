"""Started as a script: a child process that does parts of a job, without importing torch."""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Import what the job needs and do its parts.

    Args:
        arguments: The parent's ``sys.path`` as JSON, then the descriptors that `run_child` takes.
    """
    sys.path[:] = json.loads(arguments[0])
    for spec in _packages():
        sys.modules[spec.name] = _package_on_demand(spec)
    child = importlib.import_module("fastloader.sources._job_child")
    child.run_child([int(descriptor) for descriptor in arguments[1:]])
    os._exit(0)  # without the 15 ms that taking down what was imported costs


def _packages() -> Iterator[ModuleSpec]:
    """Yield packages whose modules are imported without their own code.

    That of this one imports torch and Arrow's readers, which takes two seconds, and that of
    numcodecs all codecs there are, which takes 80 ms.
    """
    root = Path(__file__).parents[1]  # of the parent, whatever its path would find
    for name, folder in (("fastloader", root), ("fastloader.sources", root / "sources")):
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None  # noqa: S101 - it has a location
        yield spec
    if (spec := importlib.util.find_spec("numcodecs")) is not None:
        yield spec


def _package_on_demand(spec: ModuleSpec) -> ModuleType:
    """Return a package whose own code runs when something of it is first asked for."""
    assert spec.loader is not None  # noqa: S101 - it is a package
    loader = spec.loader
    package = importlib.util.module_from_spec(spec)

    def run_and_get(attribute: str) -> Any:
        del vars(package)["__getattr__"]
        loader.exec_module(package)
        return getattr(package, attribute)

    vars(package)["__getattr__"] = run_and_get
    return package


if __name__ == "__main__":
    main(sys.argv[1:])
