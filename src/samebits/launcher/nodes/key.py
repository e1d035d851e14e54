"""The run's key: the one secret by which nodes know each other.

A node takes it from the first of these that is there:

1. a file of mode 0600, `--key-file` or SAMEBITS_KEY_FILE;
2. the variable SAMEBITS_KEY, which is removed from the environment so that no rank inherits it;
3. in a job of SLURM, what node 0 made at random and sealed with munge;
4. on node 0 at a terminal, a random one; the line to copy for the other nodes is printed there, and nowhere else.

A key is in no argument of a process, no log, page, state or run folder, and `repr` does not show it. It must be long
because whoever sees a connection begin can try keys against its proof at home.

munge is what SLURM's own messages are authenticated with. It proves who wrote something (a user's number) and restricts who may
read it, but two nodes cannot compute one secret with it. So node 0 makes the run's key, seals it for its own user
(`munge --restrict-uid=UID  <<<  {"job": "4711", "key": "..."}`), and gives a seal to whoever asks, instead of a hello. That is
safe: only processes of the same user on a node of the cluster can open it, and who opens it checks that the same user wrote it,
for this job. A seal is opened once on each node and within minutes, so each one who asks gets a new one, made in a thread.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cache

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.regular_file import open_regular

FILE_VARIABLE, VARIABLE, JOB_VARIABLE = "SAMEBITS_KEY_FILE", "SAMEBITS_KEY", "SLURM_JOB_ID"
FEWEST_CHARACTERS, MOST_BYTES = 32, 4096
"""128 bits in hexadecimal; more than any key needs."""
MAKE_ONE = "(umask 077; python3 -c 'import secrets; print(secrets.token_hex(32))' > samebits.key)"
"""A command that makes a key file."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class Key:
    """The secret. Pass it through memory or a pipe, never through arguments, environments or files."""

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str, origin: str) -> Key:
        """The key that a user or a file gave; `origin` says which, for the refusal of an empty or short one."""
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


@dataclass(frozen=True)
class RunKey:
    """What a node starts with."""

    key: Key | None
    """None: requested from node 0."""
    job: str = ""
    """SLURM's, if node 0 seals the key for it."""
    is_new: bool = False
    """Whether it was made here at random, so that the other nodes need a line from this terminal."""


@dataclass(frozen=True)
class KeySettings:
    """What the command line and the environment say about the key; `take` reads it, `find` decides."""

    file: str = ""
    text: str | None = field(default=None, repr=False)
    job: str = ""
    """SLURM's."""

    @classmethod
    def take(cls, option: str | None, environ: MutableMapping[str, str]) -> KeySettings:
        """Read `--key-file` and the environment, and take the key out of it: what is started later must not inherit it.

        Call it with `os.environ` before any other process is started. /proc/PID/environ of this process continues to show
        the variable to processes of the same user.
        """
        text = environ.pop(VARIABLE, None)
        file = option if option is not None else environ.get(FILE_VARIABLE, "")
        return cls(file, text, environ.get(JOB_VARIABLE, ""))

    @property
    def is_given(self) -> bool:
        """Whether there is a key without one that node 0 makes and shows."""
        return bool(self.file or self.text is not None or (self.job and has_munge()))

    def find(self, *, is_first: bool, can_show: bool) -> RunKey:
        """This node's key.

        Args:
            is_first: whether this is node 0.
            can_show: whether what this node prints goes to a terminal.

        Raises:
            UsageError: when there is none, or it is not usable.
        """
        if self.file:
            return RunKey(read_key(self.file))
        if self.text is not None:
            return RunKey(Key.of(self.text, VARIABLE))
        if self.is_given:
            return RunKey(Key.made() if is_first else None, self.job)
        give = f"Give every node the same file with --key-file or SAMEBITS_KEY_FILE, readable by you alone; `{MAKE_ONE}` makes one."
        if not is_first:
            raise UsageError("This node does not know the run's key.", f"Copy the line that node 0 printed. {give}")
        if not can_show:
            raise UsageError(
                "The nodes need a key, and a new one is shown on a terminal only, which this is not.", give
            )
        return RunKey(Key.made(), is_new=True)


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


LONGEST_SEAL = 8192
_PATIENCE_S = 5.0


def has_munge() -> bool:
    """Whether this machine can seal and open."""
    return all(shutil.which(name) for name in ("munge", "unmunge"))


def seal(key: Key, job: str) -> bytes:
    """Seal the key for processes of this user in this job. Raises EnvironmentFailure when munge fails."""
    content = json.dumps({"job": job, "key": key.secret.decode()}).encode()
    sealed = _run(["munge", f"--restrict-uid={os.geteuid()}"], content)
    if sealed.returncode:
        raise EnvironmentFailure(
            f"munge did not seal the run's key ({_reason(sealed)}): start munged on this node, or use --key-file."
        )
    return sealed.stdout.strip() + b"\n"


def unseal(sealed: bytes, job: str) -> Key:
    """Open what node 0 sealed.

    Raises:
        EnvironmentFailure: munge cannot open it.
        UsageError: another user sealed it, or another job's node.
    """
    opened = _run(["unmunge", "--keys=STATUS,UID"], sealed)
    if opened.returncode:
        raise EnvironmentFailure(
            f"munge did not open the run's key ({_reason(opened)}): start munged on this node, or use --key-file."
        )
    # unmunge prints the facts that were requested, an empty line, and what was sealed.
    about, _, content = opened.stdout.partition(b"\n\n")
    facts = dict(line.split(":", 1) for line in about.decode(errors="replace").splitlines() if ":" in line)
    if not facts.get("UID", "").strip().endswith(f"({os.geteuid()})"):  # name (number)
        raise UsageError(
            "Another user's process answers at the endpoint of this run.", "Choose another port with --rdzv-endpoint."
        )
    try:
        sealed_by = json.loads(content)
        its_job, text = str(sealed_by["job"]), str(sealed_by["key"])
    except (ValueError, KeyError, TypeError):
        its_job, text = "", ""
    if its_job != job or not text:
        raise UsageError(
            f"What answers at the endpoint of this run belongs to job {its_job or '?'}, and this is job {job}.",
            "Choose another port with --rdzv-endpoint.",
        )
    return Key.of(text, "what munge opened")


def _run(command: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run one of munge's programs, with SLURM's daemon where the usual one is not there; content goes through a pipe."""
    done = _run_once(command, content)
    socket = _socket_of_slurm() if done.returncode else ""
    return _run_once([*command, f"--socket={socket}"], content) if socket else done


@cache
def _socket_of_slurm() -> str:
    """Where SLURM's configuration says that munged answers; empty where it says nothing."""
    try:
        config = _run_once(["scontrol", "show", "config"], b"").stdout.decode(errors="replace")
    except EnvironmentFailure:
        return ""
    found = re.search(r"^AuthInfo\s*=\s*(?:.*,)?socket=([^,\s]+)", config, re.MULTILINE)
    return found[1] if found else ""


def _run_once(command: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=content, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(
            f"{command[0]} does not answer ({error}): start munged on this node, or use --key-file."
        ) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why it failed: `unmunge: Error: ...`, or `STATUS: ...`."""
    lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return lines[0].partition(":")[2].strip() if lines else f"exit code {done.returncode}"
