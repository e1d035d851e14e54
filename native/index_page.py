"""README.md as the description on a package index; what scikit-build-core asks for the field `readme`.

There a relative link leads nowhere. The one setting is `Repository` in `[project.urls]`: with it, such links and pictures
get its address. Without it, they are taken out: an entry of a list of links and a reference in brackets vanish, a link
in a sentence becomes its text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?P<picture>!?)\[(?P<label>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>(?![a-z]+:|#)[^()\s]+)\)")
_ASIDE = re.compile(rf" \((?!!){_LINK.pattern}\)|(?<=[.!?]) (?!!){_LINK.pattern.replace('?P<', '?P<own_')}\.")
_MARKUP = re.compile(r"<picture>.*?</picture>|<img\b[^>]*>", re.DOTALL)
_SOURCE = re.compile(r'(?P<before>\b(?:src|srcset)=")(?P<target>(?![a-z]+:)[^"\s]+)')
_CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def dynamic_metadata(field: str, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, str]:
    """The description: of `field` readme; there are no `settings`, and `project` refuses to show what it lacks."""
    del project
    if field != "readme" or settings:
        raise ValueError("index_page.py makes the field readme, and has no settings: correct pyproject.toml.")
    table = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    return {"content-type": "text/markdown", "text": page(readme, table.get("urls", {}).get("Repository"))}


def page(readme: str, repository: str | None) -> str:
    """The text with addresses below `repository`, or without what needs one."""
    parts = _CODE.split(re.sub(r"<!--.*?-->\n?", "", readme))
    change = _without if repository is None else lambda text: _absolute(text, repository.rstrip("/"))
    text = "".join(part if part.startswith("```") else change(part) for part in parts)
    text = re.sub(r"^## [^\n]*\n+(?=## |\Z)", "", text, flags=re.MULTILINE)  # links were all it had
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _absolute(text: str, repository: str) -> str:
    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['label']}]({repository}/{kind}/HEAD/{found['target']})"

    return _SOURCE.sub(rf"\g<before>{repository}/raw/HEAD/\g<target>", _LINK.sub(link, text))


def _without(text: str) -> str:
    lines = []
    for line in _MARKUP.sub("", text).split("\n"):
        entries = [entry for entry in line.split(" · ") if not _LINK.fullmatch(entry.removesuffix("."))]
        if entries or not line:
            rest = _ASIDE.sub("", " · ".join(entries))
            lines.append(_LINK.sub(lambda found: "" if found["picture"] else found["label"], rest))
    return "\n".join(lines)
