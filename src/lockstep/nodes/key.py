"""The run's key: the one secret by which nodes know each other.

A key is in no argument of a process, no log, page, state or run folder, and `repr` does not show it. It must be long
because whoever reaches the gate is shown a certificate made from it, and can try keys against that at home.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass, field

from lockstep.errors import UsageError
from lockstep.regular_file import open_regular

VARIABLE = "LOCKSTEP_KEY"
FEWEST_CHARACTERS, MOST_BYTES = 32, 4096
"""128 bits in hexadecimal; more than any key needs."""
MAKE_ONE = "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32))' > lockstep.key)"
"""A command that makes a key file."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Key:
    """The secret. Pass it through memory or a pipe, never through arguments, environments or files."""

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str, origin: str) -> Key:
        """The key that a person or a file gave; `origin` says which, for the refusal of an empty or short one."""
        given = text.strip()
        if not given.isascii() or not given.isprintable():
            raise UsageError(f"The key in {origin} is not plain text.", f"Make one with `{MAKE_ONE}`.")
        if len(given) < FEWEST_CHARACTERS:
            what = f"has {len(given)} characters" if given else "is empty"
            raise UsageError(
                f"The key in {origin} {what}: a key needs at least {FEWEST_CHARACTERS}, made at random.",
                f"Make one with `{MAKE_ONE}`, and give every node the same one.",
            )
        return cls(given.encode())

    @classmethod
    def made(cls) -> Key:
        """A new one: 256 random bits."""
        return cls(secrets.token_hex(32).encode())

    def line_for_others(self, command: str) -> str:
        """The line to copy to the other nodes. Show it on a terminal only: it has the key in it.

        The blank at its beginning keeps it out of the history of shells that are set so; the key is in the environment of
        `command`, and in nobody's arguments.
        """
        return f" {VARIABLE}={self.secret.decode()} {command}"


def read_key(path: str) -> Key:
    """Read a key file. Raises UsageError when it is missing or not a file, when others may read it, or when it is too short."""
    name = f"the key file {path}"
    try:
        with open_regular(path) as file:
            status, content = os.fstat(file.fileno()), file.read(MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"Cannot read {name}: {reason}.", f"Make one with `{MAKE_ONE}`.") from None
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise UsageError(f"Others may read or write {name} (mode {mode:04o}).", f"Run `chmod 600 {path}`.")
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"The owner of {name} is another user.", "Make a key file of your own.")
    return Key.of(content.decode("ascii", "surrogateescape"), name)
