"""Pages to look at: trajectories as rivers, training trees as maps. Files that need nothing else.

A page is one HTML file with its data, style and script inside; it asks no other host for anything.
Serving pages is left to the gateway, choosing files to the command line.
"""

from anabranch.views.live import live_page
from anabranch.views.page import Page, pages_text, write_pages
from anabranch.views.river import Fork, Lane, Piece, river_of_document, river_of_trajectory
from anabranch.views.tree import tree_page

__all__ = [
    "Fork",
    "Lane",
    "Page",
    "Piece",
    "live_page",
    "pages_text",
    "river_of_document",
    "river_of_trajectory",
    "tree_page",
    "write_pages",
]
