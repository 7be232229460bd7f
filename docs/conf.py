"""How Sphinx builds the documentation."""

from importlib.metadata import version as installed_version

project = "FastLoader"
author = "the FastLoader developers"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx asks for this name
release = installed_version("fastloader")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"FastLoader {release}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

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
    ("py:.*", r"(collections|concurrent|multiprocessing|numpy|np|os|pathlib|pyarrow|torch)\..*")
]
