"""The site that is made of these pages: `python -m sphinx -W docs site`. One page for each reader begins it, index.md."""

from importlib import metadata

project = "Onefold"
author = "the Onefold developers"
project_copyright = "the Onefold developers"
release = version = metadata.version("onefold")
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"Onefold {release}"
# Every heading can be linked to, as the pages do: [Settings](#settings).
myst_heading_anchors = 4
