"""From what pip has installed lockstep here, as the words that let it install the same again."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from urllib.parse import unquote, urlsplit

NAME = "lockstep-train"


def own_source() -> str:
    """The folder or file, with `-e` where it is editable; else the name. A clone that nothing has installed: `.`."""
    try:
        told = metadata.distribution(NAME).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "."
    return words_of(told or "")


def words_of(direct_url: str) -> str:
    """The same from the text that pip keeps beside a package; empty for one from an index."""
    try:
        told = json.loads(direct_url)
        url = str(told["url"])
        is_editable = bool(told.get("dir_info", {}).get("editable"))
    except (ValueError, TypeError, LookupError, AttributeError):
        return NAME
    parts = urlsplit(url)
    if parts.scheme == "file":
        return ("-e " if is_editable else "") + shlex.quote(unquote(parts.path))
    vcs = told.get("vcs_info", {}).get("vcs")
    return shlex.quote(f"{NAME} @ {vcs}+{url}" if vcs else f"{NAME} @ {url}")
