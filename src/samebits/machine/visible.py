"""Text from elsewhere (ranks, exceptions, file names, manifests, options) as a terminal may show it; and standard streams.

A control character in it would clear the screen, move the cursor or forge a line of ours; it is shown as Python would
write it in a string. docs/design/start-and-nodes.md says what is shown this way, and what passes unchanged.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress

_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without the tab, DEL, C1, line and paragraph separators, changes of writing direction, half surrogate pairs."""
_CONTROL_IN_LINES = re.compile(_CONTROL.pattern.replace("\x0a", "\x0b", 1))
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")
_SHORT = {"\n": "\\n", "\r": "\\r"}


def visible(text: object) -> str:
    """`text` on one line, without a character that acts on a terminal.

    Invariants: visible text stays as it is, and so does a result.
    """
    return _CONTROL.sub(_escaped, str(text))


def visible_lines(text: object) -> str:
    """`text` with its lines, each without a character that acts on a terminal."""
    return _CONTROL_IN_LINES.sub(_escaped, str(text))


def hung(text: object, indent: str = "  ") -> str:
    """`visible_lines` with all lines but the first indented and empty ones, so that none of them begins like a line of ours."""
    return re.sub(r"\n(?=.)", f"\n{indent}", visible_lines(text))


def without_colours(text: str) -> str:
    """`text` without the escape codes that only choose colours and weights, which log libraries write."""
    return _COLOUR.sub("", text)


def _escaped(match: re.Match[str]) -> str:
    letter = match.group()
    code = ord(letter)
    # A byte of a file name that is not UTF-8, as surrogateescape decodes it.
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return _SHORT.get(letter) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


# Standard output and error, which may be closed or go to a full disk: nothing here raises because of that


def write_error(line: str) -> None:
    """Print a line to standard error, or drop it where that cannot be written."""
    # Python without a standard error has None there, which print takes for standard output.
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # ValueError: closed
            # In one piece: other ranks may write there too.
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def flush_output() -> None:
    """Let what was printed leave this process, where somebody takes it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # AttributeError: there is none
            stream.flush()
