"""What the bits of two steps depended on, and where that differs; a row for each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Json = dict[str, Any]
_PACKAGE = re.compile(r"(.+?)-(\d.*?)(?:\.dist-info|(?:-py[\d.]+)?\.egg-info)")
"""How the folder is called that says which version is installed."""
_ONE = {"packages": "package", "files": "file", "flags": "flag", "environment": "variable"}


def rows_apart(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Json]:
    """Name and both values of each condition that differs; None where one has none."""
    keys = dict.fromkeys((*left, *right))
    return [row for key in keys if left.get(key) != right.get(key) for row in _rows(key, left.get(key), right.get(key))]


def _rows(key: str, left: Any, right: Any) -> Iterator[Json]:
    one, other = _parts(key, left), _parts(key, right)
    if one is None or other is None:
        yield {"condition": key, "left": left, "right": right}
        return
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            yield {
                "condition": f"{_ONE.get(key, key)} {name}",
                "left": one.get(name),
                "right": other.get(name),
            }


def _parts(key: str, value: Any) -> Mapping[str, Any] | None:
    """What it consists of, by name; None where it is one value."""
    if isinstance(value, dict) or (value is None and key in _ONE):
        return value or {}
    return packages_of(value) if key == "packages" and isinstance(value, list) else None


def packages_of(folders: Sequence[Any]) -> dict[str, str]:
    """Packages with their versions, from the names of their folders."""
    found = {}
    for folder in map(str, folders):
        match = _PACKAGE.fullmatch(folder)
        found[match[1] if match else folder] = match[2] if match else "installed"
    return found


def few_words(rows: Sequence[Json], most: int = 3) -> str:
    """`torch 2.9.0 and 2.10.0, package numpy 2.1 and none, and 4 more`."""
    words = [f"{row['condition']} {value_text(row['left'])} and {value_text(row['right'])}" for row in rows[:most]]
    return ", ".join([*words, *([f"and {len(rows) - most} more"] if len(rows) > most else [])])


def value_text(value: Any) -> str:
    """A value in few characters; a hash by its beginning."""
    if value is None:
        return "none"
    text = str(value)
    return text[:12] if re.fullmatch(r"[0-9a-f]{32,}", text) else text
