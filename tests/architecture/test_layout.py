"""The rules of the house that no linter knows."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fastloader

_ROOT = Path(fastloader.__file__).parent
_PATHS = sorted(_ROOT.rglob("*.py"))
_MAX_LINES = 400
_OPTIONAL = {
    "accelerate", "datasets", "duckdb", "ignite", "lance", "lightning", "matplotlib", "monai",
    "pandas", "ray", "torchdata", "torchvision", "transformers", "vortex",
}  # fmt: skip
_BANNED_STEMS = {"utils", "helpers", "common", "misc", "manager"}

every_module = pytest.mark.parametrize(
    "path", _PATHS, ids=[str(path.relative_to(_ROOT)) for path in _PATHS]
)


def _module(path: Path) -> ModuleType:
    parts = path.relative_to(_ROOT.parent).with_suffix("").parts
    try:
        return importlib.import_module(".".join(parts).removesuffix(".__init__"))
    except ModuleNotFoundError as error:
        if error.name not in _OPTIONAL:
            raise
        pytest.skip(f"needs {error.name}, which is not installed")


@every_module
def test_a_module_is_short(path):
    num_lines = len(path.read_text(encoding="utf-8").splitlines())

    assert num_lines <= _MAX_LINES


@every_module
def test_a_module_has_a_telling_name(path):
    assert path.stem.strip("_") not in _BANNED_STEMS


@every_module
def test_a_module_says_its_one_idea_in_one_line(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":"))


@every_module
def test_all_lists_what_a_module_offers(path):
    module = _module(path)
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }
    exported = getattr(module, "__all__", None)
    if path.name == "__init__.py" and exported is None:
        assert not own
        return

    assert exported is not None, "the module has no __all__"
    assert sorted(set(exported)) == sorted(exported)
    assert own <= set(exported)
    assert all(hasattr(module, name) for name in exported)


@every_module
def test_private_names_of_torch_stand_in_one_module(path):
    if path.name == "_torch_internals.py":
        return
    private = re.compile(
        r"\btorch(?:\.\w+)*\._(?!_)\w+|from torch(?:\.\w+)*\._|_utils\.(?:collate|fetch|worker)"
    )

    found = [
        line for line in path.read_text(encoding="utf-8").splitlines() if private.search(line)
    ]

    assert not found


@every_module
def test_everything_public_has_a_docstring(path):
    module = _module(path)
    missing = []
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__module__.startswith("fastloader"):
            continue  # another package's, passed on
        if not value.__doc__:
            missing.append(name)
        if inspect.isclass(value):
            missing += [
                f"{name}.{method}"
                for method, function in vars(value).items()
                if not method.startswith("_")
                and inspect.isfunction(function)
                and not inspect.getdoc(getattr(value, method))
            ]

    assert not missing


def test_documented_modules_are_attributes_of_the_package():
    names = [
        page.stem for page in (Path(__file__).parents[2] / "docs/reference/api").glob("*.md")
    ]
    names.remove("fastloader")
    script = (  # the reference is made of what `dir` names
        f"import fastloader as f; [(getattr(f, n), dir(f).index(n)) for n in [*{names}, *f.__all__]]"
    )

    assert "tuning" in names
    subprocess.run([sys.executable, "-c", script], check=True)


def test_import_takes_no_optional_package_and_starts_nothing():
    script = (
        "import sys, threading, logging, fastloader.datasets\n"
        "fastloader.OMEArrowDataset\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert not logging.root.handlers\n"
        "print(*(name for name in sys.modules if '.' not in name))"
    )

    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    assert not _OPTIONAL & set(output.split())


def test_the_tree_in_the_documentation_is_that_of_the_package():
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = page.partition("```text\nsrc/fastloader/\n")[2].partition("```")[0]
    named = set()
    for line in tree.splitlines():
        folder = re.match(r"  (\w+)/ ", line)
        if folder or line.startswith("  "):
            inside = f"{folder[1]}/" if folder else ""
            named |= {inside} | {inside + name for name in re.findall(r"\w+\.py", line)}

    assert {f"{path.parent.name}/" for path in _ROOT.glob("*/__init__.py")} <= named
    assert {path.name for path in _ROOT.glob("*.py")} - named == {"__init__.py"}
    assert [name for name in sorted(named) if not (_ROOT / name).exists()] == []
