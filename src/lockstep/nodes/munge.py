"""The key of a job of SLURM, which nobody has to set: node 0 makes it at random, and munge seals it.

munge is what SLURM's own messages are authenticated with: every node of the cluster has its daemon, and only the daemons
know the cluster's key. It proves who wrote something (a user's number) and restricts who may read it, but two nodes
cannot compute one secret with it. So node 0 makes the run's key and seals it for its own user:

    munge --restrict-uid=UID  <<<  {"job": "4711", "key": "..."}

Node 0 gives a seal to whoever asks, instead of a hello. That is safe: only processes of the same user on a node of the cluster
can open it, and who opens it checks that the same user wrote it, for this job. A seal is opened once on each node and
within minutes, so each one who asks gets a new one, made in a thread: strangers who ask can delay the nodes that join,
and nobody else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache

from lockstep.errors import UsageError, WorldError
from lockstep.nodes.key import Key

LONGEST_SEAL = 8192
_PATIENCE_S = 5.0


def has_munge() -> bool:
    """Whether this machine can seal and open."""
    return all(shutil.which(name) for name in ("munge", "unmunge"))


def seal(key: Key, job: str) -> bytes:
    """Seal the key for processes of this user in this job. Raises WorldError when munge fails."""
    content = json.dumps({"job": job, "key": key.secret.decode()}).encode()
    sealed = _run(["munge", f"--restrict-uid={os.geteuid()}"], content)
    if sealed.returncode:
        raise WorldError(
            f"munge did not seal the run's key ({_said(sealed)}): start munged on this node, or use --key-file."
        )
    return sealed.stdout.strip() + b"\n"


def unseal(sealed: bytes, job: str) -> Key:
    """Open what node 0 sealed.

    Raises:
        WorldError: munge cannot open it.
        UsageError: another user sealed it, or another job's node.
    """
    opened = _run(["unmunge", "--keys=STATUS,UID"], sealed)
    if opened.returncode:
        raise WorldError(
            f"munge did not open the run's key ({_said(opened)}): start munged on this node, or use --key-file."
        )
    about, _, content = opened.stdout.partition(b"\n\n")
    facts = dict(line.split(":", 1) for line in about.decode(errors="replace").splitlines() if ":" in line)
    if not facts.get("UID", "").strip().endswith(f"({os.geteuid()})"):  # name (number)
        raise UsageError(
            "Another user's process answers at the endpoint of this run.", "Choose another port with --rdzv-endpoint."
        )
    try:
        told = json.loads(content)
        its_job, text = str(told["job"]), str(told["key"])
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
        told = _run_once(["scontrol", "show", "config"], b"").stdout.decode(errors="replace")
    except WorldError:
        return ""
    found = re.search(r"^AuthInfo\s*=\s*(?:.*,)?socket=([^,\s]+)", told, re.MULTILINE)
    return found[1] if found else ""


def _run_once(command: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=content, capture_output=True, timeout=_PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorldError(
            f"{command[0]} does not answer ({error}): start munged on this node, or use --key-file."
        ) from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why it failed: `unmunge: Error: ...`, or `STATUS: ...`."""
    lines = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
    return lines[0].partition(":")[2].strip() if lines else f"exit code {done.returncode}"
