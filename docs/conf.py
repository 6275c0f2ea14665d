"""Settings of Sphinx: `make site` builds the pages in site/. Warnings and broken links are errors.

Nothing is loaded from other sites: themes, icons and MathJax are in Python packages.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from dish import __version__

project = "dish"
author = "The DISH authors"
copyright = "The DISH authors, MIT licence; formulas by MathJax, Apache licence 2.0"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
    "outside_links",
    "commands_page",
    "routes_page",
    "local_mathjax",
    "plain_docstrings",
]
exclude_patterns = ["examples/*.py", "examples/*.ipynb", "examples/*.md5", "examples/*.zip", "static", "templates"]
templates_path = ["templates"]
highlight_language = "none"  # blocks without a language are formulas, files and output
smartquotes = False  # "auto" and --option are code

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4  # the same anchors as on a page of the repository
myst_links_external_new_tab = False

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it, in words
autodoc_mock_imports = ["sentence_transformers"]  # the only optional package that a module imports at its top
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"  # attach_vectors() instead of HammingIndex.attach_vectors()
autodoc_default_options = {"members": True, "inherited-members": "object"}
numpydoc_show_class_members = False  # the methods follow on the same page
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "examples",
    "filename_pattern": r"/examples/\w+\.py$",
    "plot_gallery": "True",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "within_subsection_order": "ExampleTitleSortKey",
    "capture_repr": (),
    "default_thumb_file": None,
}
warnings.filterwarnings("ignore", message="n_anchors", category=UserWarning)  # examples are small

html_theme = "pydata_sphinx_theme"
html_title = "dish"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}  # light or dark, as the browser says
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"index": [], "changes": []}
html_theme_options = {
    "logo": {"text": "dish"},
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "back_to_top_button": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_exclude = ".linenos, .gp, .go"
