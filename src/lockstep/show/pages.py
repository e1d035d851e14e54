"""One HTML file of a story: the page's own files and the data in it, and nothing loaded from anywhere."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def page(data: dict[str, Any]) -> str:
    """The whole page.

    Args:
        data: `mode` ("report", "comparison" or "live") and what that shows, as JSON values.
    """
    html = _text("page.html").replace("/*STYLE*/", f"{_text('uplot.css')}\n{_text('page.css')}")
    html = html.replace("/*SCRIPT*/", f"{_text('uplot.js')}\n{_text('page.js')}")
    return html.replace("/*DATA*/", embedded(data))


def embedded(data: dict[str, Any]) -> str:
    """JSON that no text of a run can end early, or turn into something else, inside of a page."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _text(name: str) -> str:
    return files("lockstep.show").joinpath("page", name).read_text(encoding="utf-8")
