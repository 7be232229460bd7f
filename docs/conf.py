"""How Sphinx builds the documentation."""

from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "FastLoader"
author = "the FastLoader developers"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx asks for this name
release = installed_version("fastloader")
version = release

extensions = [
    "myst_nb",  # MyST Markdown, and pages that are notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"FastLoader {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Notebooks hold no outputs: each build runs them, and fails where one fails.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120  # seconds for a cell
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_type_aliases = {"Sample": "Sample", "Batch": "Batch"}
napoleon_numpy_docstring = False
# A name in single backticks becomes a link where it can; arguments and options stay code.
default_role = "any"
suppress_warnings = ["ref.any"]

# Of other projects; their object lists would have to be fetched.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(abc|accelerate|collections|concurrent|datetime|lightning|multiprocessing|numpy|np|os|pathlib|pc)\..*",
    ),
    (
        "py:.*",
        r"(pyarrow|ray|torch|transformers)\..*",
    ),
    ("py:.*", r".*\bT_co"),  # type variables have no page
    ("py:.*", r"fastloader(\.\w+)*\._.*"),  # nor has what is private
]


def _keep_colons(
    _app: Sphinx, what: str, _name: str, _value: object, _options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking what stands before a colon for the type of an attribute."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment, as the line that it looks at


def setup(app: Sphinx) -> None:
    """Register what Sphinx calls."""
    app.connect("autodoc-process-docstring", _keep_colons, priority=100)  # before napoleon
