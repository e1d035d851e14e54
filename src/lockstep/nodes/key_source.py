"""Where a node takes the run's key from: the first of these that is there.

1. A file of mode 0600, `--key-file` or LOCKSTEP_KEY_FILE.
2. The variable LOCKSTEP_KEY, which is removed from the environment so that no rank inherits it.
3. In a job of SLURM, what node 0 made at random and sealed with munge (`lockstep.nodes.munge`).
4. On node 0 at a terminal, a random one; the line to copy for the other nodes is printed there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import Enum

from lockstep.errors import UsageError
from lockstep.nodes.dial import Place
from lockstep.nodes.key import MAKE_ONE, VARIABLE, Key, read_key
from lockstep.nodes.munge import has_munge, key_of_job, seal

FILE_VARIABLE, JOB_VARIABLE = "LOCKSTEP_KEY_FILE", "SLURM_JOB_ID"


class Source(Enum):
    """Where a node's key comes from."""

    FILE = "a file"
    VARIABLE = "the environment"
    MUNGE = "node 0, sealed with munge"
    MADE = "node 0, made at random"


@dataclass(frozen=True)
class KeySettings:
    """What a node was told about the key; `take` reads it, `source` decides."""

    file: str = ""
    text: str = field(default="", repr=False)
    is_text_set: bool = False
    job: str = ""
    """SLURM's job."""

    @classmethod
    def take(cls, option: str | None, environ: MutableMapping[str, str]) -> KeySettings:
        """Read `--key-file` and the environment, and take the key out of it: what is started later must not inherit it.

        Call it with `os.environ` before any other process is started. /proc/PID/environ of this process goes on showing the
        variable to processes of the same user.
        """
        text = environ.pop(VARIABLE, None)
        file = option if option is not None else environ.get(FILE_VARIABLE, "")
        return cls(file, text or "", text is not None, environ.get(JOB_VARIABLE, ""))

    def source(self, *, is_first: bool, has_munge: bool, can_show: bool) -> Source:
        """Where this node's key comes from.

        Args:
            is_first: whether this is node 0.
            has_munge: whether `munge` and `unmunge` are installed here.
            can_show: whether what this node prints is read by a person only, so a terminal.

        Raises:
            UsageError: when no source is left.
        """
        if self.file:
            return Source.FILE
        if self.is_text_set:
            return Source.VARIABLE
        if self.job and has_munge:
            return Source.MUNGE
        give = f"Give every node the same file with --key-file, readable by you alone; `{MAKE_ONE}` makes one."
        if not is_first:
            raise UsageError("This node does not know the run's key.", f"Copy the line that node 0 printed. {give}")
        if not can_show:
            raise UsageError(
                "The nodes need a key, and a new one is shown on a terminal only, which this is not.", give
            )
        return Source.MADE

    def given(self, source: Source) -> Key:
        """The key of a FILE or a VARIABLE. Raises UsageError when it is not usable."""
        return read_key(self.file) if source is Source.FILE else Key.of(self.text, VARIABLE)


@dataclass(frozen=True)
class FirstKey:
    """The key of node 0, and how it reaches the others."""

    key: Key
    source: Source
    """MADE: print `key.line_for_others` on the terminal."""
    seal: Callable[[], bytes] | None = None
    """MUNGE: for the gate."""


def first_key(settings: KeySettings, *, can_show: bool) -> FirstKey:
    """The key on node 0. Raises UsageError, or WorldError when munge does not work."""
    source = settings.source(is_first=True, has_munge=has_munge(), can_show=can_show)
    if source is Source.MADE:
        return FirstKey(Key.made(), source)
    if source is Source.MUNGE:
        key = Key.made()
        seal(key, settings.job)  # so that it fails here, and not when somebody asks
        return FirstKey(key, source, lambda: seal(key, settings.job))
    return FirstKey(settings.given(source), source)


def joining_key(settings: KeySettings, place: Place, patience_s: float) -> Key:
    """The key on another node. Raises like `key_of_job`, which waits `patience_s` for node 0; and UsageError."""
    source = settings.source(is_first=False, has_munge=has_munge(), can_show=False)
    return key_of_job(place, settings.job, patience_s) if source is Source.MUNGE else settings.given(source)


def without_key(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for a rank: without the key, and without the name of its file."""
    return {name: value for name, value in environ.items() if name not in (VARIABLE, FILE_VARIABLE)}
