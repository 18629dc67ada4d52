"""The live page: a frame without any data, which asks its own server for figures.

What the figures are is the gateway's; nothing is drawn without a script, and nothing is asked of
another host.
"""

from __future__ import annotations

from anabranch.views.page import asset, escape


def live_page(source: str) -> str:
    """One HTML page that polls ``source``, an address relative to its own."""
    frame = asset("live.html").replace("{{style}}", asset("common.css") + asset("live.css"))
    frame = frame.replace("{{script}}", asset("common.js") + asset("live.js"))
    return frame.replace("{{source}}", escape(source))
