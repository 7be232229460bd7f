"""Started as a script: a child process that does parts of a job, without importing torch."""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main"]

_PACKAGES = ("fastloader", "fastloader.sources")


def main(arguments: list[str]) -> None:
    """Import what the job needs and do its parts.

    Args:
        arguments: The parent's ``sys.path`` as JSON, then the descriptors that `run_child` takes.
    """
    sys.path[:] = json.loads(arguments[0])
    root = Path(__file__).parents[1]
    for name in _PACKAGES:
        sys.modules[name] = _package_on_demand(name, root.joinpath(*name.split(".")[1:]))
    child = importlib.import_module("fastloader.sources._job_child")
    child.run_child([int(descriptor) for descriptor in arguments[1:]])


def _package_on_demand(name: str, folder: Path) -> ModuleType:
    """Return a package whose own code runs when something of it is first asked for.

    That code imports torch and Arrow's readers, which take two seconds, while its modules can
    be imported without it.
    """
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None  # noqa: S101 - it has a location
    assert spec.loader is not None  # noqa: S101
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
