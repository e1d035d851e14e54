"""What must not be published by mistake: words that look like secrets, absolute paths, this machine's and this user's name. Pure.

It reads words as people write options. It is a net with holes: who publishes looks at what is printed too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(
    r"(?i)(?:^|[-_.])(?:key|token|secret|password|passwd|passphrase|credentials?|apikey|auth)$|(?:[a-z])(?-i:Key|Token|Secret|Password)$"
)
"""How the name of an option or a variable ends that has a secret. `--key-dim` and `--num-tokens` have none."""
_SHAPES = re.compile(
    r"""\b(?:AKIA|ASIA)[0-9A-Z]{16}\b            # AWS
    |\bhf_[A-Za-z0-9]{16,}                       # Hugging Face
    |\b(?:gh[opsur]_|github_pat_)[A-Za-z0-9_]{16,}
    |\bglpat-[\w-]{16,}|\bxox[abeoprs]-[\w-]{8,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{8,}|\bnpm_[A-Za-z0-9]{30,}
    |\b(?:sk|pk|rk)-[\w-]{16,}|\bwandb_v\d_\w{16,}
    |\beyJ[\w-]{8,}\.[\w-]{8,}                   # a JSON web token
    |-----BEGIN\b
    |://[^/\s@]+:[^/\s@]+@                       # a URL with a password
    |\b[0-9a-fA-F]{32,}\b                        # W&B, and other hexadecimal keys
    """,
    re.VERBOSE,
)
_LONG = re.compile(r"[A-Za-z0-9+_-]{20,}|[A-Za-z0-9+/_-]{40,}")
"""Words of base64; its slash is one of paths too."""
_PATH = re.compile(
    r"""(?:^|[\s=,;:'"([{])/[^\s/]                    # /data, --x=/data, host:/data
    |(?:^|[\s=,;'"([{])(?://[^\s/]|~[\w/]|[A-Za-z]:[\\/](?!/))
    |\bfile://|\\\\\w
    """,
    re.VERBOSE,
)
_OF_NOBODY = frozenset(("root", "user", "localhost"))
"""Names that say nothing of a person or a machine."""


@dataclass(frozen=True)
class Self:
    """Who publishes, and where."""

    home: str
    user: str
    hosts: tuple[str, ...]

    def named_in(self, text: str) -> str:
        """What of it the text names, in words; empty where nothing."""
        if len(self.home) > 1 and self.home in text:
            return "your home folder"
        if _is_word(self.user, text):
            return "your user name"
        return "this machine's name" if any(_is_word(one, text) for one in self.hosts) else ""


def _is_word(name: str, text: str) -> bool:
    is_name = len(name) > 1 and name.lower() not in _OF_NOBODY
    return is_name and re.search(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text) is not None


def why_private(words: Iterable[str], me: Self) -> str:
    """The first thing among the words of a command that should not become public, without its value; empty where nothing."""
    before = ""
    for word in words:
        name, _, value = word.partition("=")
        if value and _is_secret_name(name):
            return f"the value of {name}, which looks like a secret"
        if before and not word.startswith("-"):
            return f"the value of {before}, which looks like a secret"
        before = word if word.startswith("-") and not value and _is_secret_name(word) else ""
        if why := why_text(word, me):
            return why
    return ""


def _is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None


def why_text(text: str, me: Self) -> str:
    """The same of one text that is no option."""
    if _SHAPES.search(text) or any(_is_random(one) for one in _LONG.findall(text)):
        return "a word that looks like a secret"
    return why_place(text, me)


def why_place(text: str, me: Self) -> str:
    """Whether it says where something is, or who did it."""
    return "an absolute path" if _PATH.search(text) else me.named_in(text)


def _is_random(word: str) -> bool:
    """Whether it looks drawn: digits among letters of both kinds, not only at the ends of its parts."""
    longest = max(re.split(r"[-_+/]", word), key=len)
    most = longest if len(longest) >= 16 else word
    changes = len(re.findall(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])|[a-z](?=[A-Z])", most))
    has_all = all(re.search(kind, word) for kind in ("[0-9]", "[a-z]", "[A-Z]"))
    return has_all and (changes * 5 >= len(most) or (len(word) >= 40 and sum(map(str.isupper, word)) * 5 >= len(word)))


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a value of JSON, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield str(key)
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
