"""URLs in the place of paths, such as s3://bucket/exp1: what can be known of one without going there.

fsspec reads and writes them: https://filesystem-spec.readthedocs.io. It comes with torch, the driver of a scheme (s3fs for
s3) does not. Both are loaded only where somebody names a URL.
"""

from __future__ import annotations

import importlib
import os
import re
from importlib.util import find_spec
from typing import Any

from samebits.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)((?:::[^/]*)?)://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"[^/@]*:(?!\d+/)[^@]*@")
"""Behind ://, with slashes in the password too; host:22/ is a port."""
_COLLAPSED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/[^/].*", re.DOTALL)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether this is a URL, and not a path.

    Raises:
        UsageError: for a URL that went through pathlib, which makes one slash of two.
    """
    text = os.fspath(path)
    if _COLLAPSED.fullmatch(text):
        raise UsageError(f"{text!r} is neither a path nor a URL: it has one slash.", "Pass a URL as a string.")
    return _URL.fullmatch(text) is not None


def shown(url: str) -> str:
    """A URL as messages have it: without the part behind a question mark, which may be a signature."""
    return url.partition("?")[0]


def below(url: str, name: str) -> str:
    """The URL of `name` in the folder `url`."""
    return f"{url.rstrip('/')}/{name}"


def parted(url: str) -> tuple[str, str]:
    """The folder that a URL lies in, and its name there.

    Raises:
        UsageError: when it is no name in a folder.
    """
    place, mark, signature = url.partition("?")
    folder, _, name = place.rstrip("/").rpartition("/")
    if not folder.partition("://")[2]:
        raise UsageError(f"{shown(url)} does not name a file.", "Write s3://bucket/net.safetensors.")
    return folder, f"{name}{mark}{signature}"


def check_url(url: str) -> None:
    """Look at what can be known before anything starts.

    Raises:
        UsageError: for a URL with a password, of an unknown scheme, or whose driver is not installed.
    """
    found = _URL.fullmatch(url)
    assert found is not None, "is_url says so"
    scheme, chained, rest = found[1], found[2], found[3]
    if _PASSWORD.match(rest):
        raise UsageError(
            f"A {scheme}:// URL has a password in it, which process lists and logs would show.",
            "Leave it out, and give it to the driver by a variable or fsspec's configuration.",
        )
    if chained or "::" in rest:
        problem = f"{shown(url)} chains several URLs, of which samebits cannot know where a file would be."
        raise UsageError(problem, "Name one place, such as s3://bucket/exp1.")
    if not rest.strip("/"):
        example = f"{scheme}:///folder/exp1" if scheme in ("file", "local") else f"{scheme}://bucket/exp1"
        raise UsageError(f"{shown(url)} names no place for a state.", f"Write {example}.")
    drivers = _fsspec("fsspec.registry")
    known = drivers.known_implementations.get(scheme)
    if scheme not in drivers.registry and known is None:
        raise UsageError(
            f"{scheme}:// is a kind of URL that fsspec does not know ({shown(url)}).",
            "Use s3://, gs://, az://, sftp:// or file://, or install the driver that brings it.",
        )
    if known is not None and find_spec(package := known["class"].partition(".")[0]) is None:
        raise UsageError(
            f"{scheme}:// needs the package {package}, which is not installed ({shown(url)}).",
            f"Install it with `pip install {package}`.",
        )


def check_shared(url: Any, option: str) -> None:
    """The same for states that a process of its own writes.

    Raises:
        UsageError: for what is no URL too, or one that only this process could read.
    """
    if not isinstance(url, (str, os.PathLike)) or not is_url(url):
        raise UsageError(f"{option} must be a URL, but is {url!r}.", "Write s3://bucket/runs, or leave it out.")
    url = os.fspath(url)
    check_url(url)
    if "?" in url:
        raise UsageError(
            f"{option} has a question mark in it, behind which no name of a run can follow ({shown(url)}).",
            "Leave that part out, and give the driver its credentials by a variable or fsspec's configuration.",
        )
    if is_of_one_process(url):
        raise UsageError(
            f"{option} is {url}, which lives in one process only, and another one writes states.",
            "Use file:// or a server.",
        )


def is_of_one_process(url: str) -> bool:
    """Whether no other process can read it."""
    return url.startswith("memory://")


def file_system(url: str) -> tuple[Any, str]:
    """Fsspec's file system for a URL, and the place in it. May go to the network, and raise whatever a driver raises."""
    fs, place = _fsspec("fsspec.core").url_to_fs(url)
    return fs, place.rstrip("/")


def _fsspec(module: str) -> Any:
    try:
        # [Note: why fsspec is imported first]
        # The import adds the drivers of installed packages to its registry.
        importlib.import_module("fsspec")
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            "URLs need the package fsspec, which is not installed.", "Install it with `pip install fsspec`."
        ) from None
