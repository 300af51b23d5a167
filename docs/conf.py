"""How Sphinx makes a site of these pages: ``tox run -e docs``."""

project = "placement_checks"
author = copyright = "the authors of placement_checks"
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["README.md"]  # index.rst has it
nitpicky = True
html_theme = "furo"  # its fonts and scripts come with it: nothing is asked of a network
html_title = "placement_checks"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
