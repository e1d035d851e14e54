"""A release up to its upload: `make release VERSION=x.y.z`, or `python -m shipping.release x.y.z`.

The version goes into samebits/protocol/installation.py, its only place, and above what CHANGELOG.md has under "Unreleased"; that is
committed and tagged; the packages are built and checked. The commands that publish them are printed, and run by a
person, who sets RELEASED beside the version before the first upload: messages then name the index.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shipping.interpreters import interpreters
from shipping.refusal import Refusal, ended
from shipping.wheels import check_tools, chosen

Version = tuple[int, int, int]

_IN_PACKAGE = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)
_UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def parsed(text: str) -> Version:
    """`0.2.0` as three numbers.

    Raises:
        Refusal: it is something else.
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", text):
        raise Refusal(f"{text!r} is no version: give three numbers, as in make release VERSION=0.2.0")
    major, minor, patch = map(int, text.split("."))
    return major, minor, patch


def objection(version: Version, tags: Sequence[str], current: Version, changes: str | None) -> str:
    """Why this version cannot be released, with the fix; empty where it can. `changes`: what is new, or None.

    The version that the package already has can be released once; a tag shows that it has been.
    """
    released = [parsed(tag[1:]) for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    name = dotted(version)
    if version in released:
        return f"version {name} exists, as the tag v{name}: choose one above {dotted(max(released))}"
    newest = max([*released, current])
    if version < newest:
        return f"version {name} is not newer than {dotted(newest)}: choose one above it"
    if not (changes or "").strip():
        return 'CHANGELOG.md says nothing under "## Unreleased": write down there what is new'
    return ""


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def dated(changelog: str, version: str, day: dt.date) -> str:
    """The changelog with the version and its date above what was unreleased."""
    return changelog.replace("## Unreleased\n", f"## Unreleased\n\n## {version} ({day.isoformat()})\n", 1)


def unreleased(changelog: str) -> str | None:
    """What is under that heading."""
    found = _UNRELEASED.search(changelog)
    return found and found[1]


def release(repository: Path, text: str, with_packages: bool) -> None:
    """Do everything up to the upload. Nothing has changed when this refuses.

    Raises:
        Refusal: with the reason and the fix.
        subprocess.CalledProcessError: git or the build failed, and has said why.
    """
    version = parsed(text)
    package, log = repository / "src/samebits/protocol/installation.py", repository / "CHANGELOG.md"
    told, changelog = package.read_text(), log.read_text()
    found = _IN_PACKAGE.search(told)
    if found is None:
        raise Refusal(f'{package} has no line VERSION = "x.y.z": put it back')
    problem = objection(
        version, _git(repository, "tag", "--list", "v*").split(), parsed(found[1]), unreleased(changelog)
    )
    if problem:
        raise Refusal(problem)
    if changed := _git(repository, "status", "--porcelain"):
        raise Refusal(f"{len(changed.splitlines())} files are not committed: commit or stash them (git status)")
    if with_packages:
        _prepared()
    name = dotted(version)
    package.write_text(_IN_PACKAGE.sub(f'VERSION = "{name}"', told, count=1))
    today = dt.datetime.now(dt.UTC).date()
    log.write_text(dated(changelog, name, today))
    _git(repository, "commit", "--quiet", "--all", "--message", f"Release {name}")
    _git(repository, "tag", "--annotate", f"v{name}", "--message", f"samebits {name}")
    print(
        f"{name} is committed and tagged v{name}; git reset --hard HEAD~ && git tag -d v{name} takes it back.",
        flush=True,
    )
    if with_packages:
        subprocess.run([sys.executable, "-m", "shipping.wheels"], cwd=repository, check=True)
    print("Nothing has left this machine. To publish it:")
    print(f"  git push origin HEAD v{name}")
    print(f"  {sys.executable} -m twine upload dist/samebits-{name}*")


def _prepared() -> None:
    """Refuse, before anything has changed, if packages cannot be built."""
    check_tools()
    chosen(interpreters())


def _git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=repository, stdout=subprocess.PIPE, text=True, check=True).stdout


def main(arguments: Sequence[str]) -> int:
    """0 when the release is ready, 2 when it is refused."""
    parser = argparse.ArgumentParser(prog="python -m shipping.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="three numbers, as in 0.2.0")
    parser.add_argument("--repository", type=Path, default=Path(), help="the checkout [here]")
    parser.add_argument("--without-packages", action="store_true", help="build no wheels")
    asked = parser.parse_args(arguments)
    return ended(lambda: release(asked.repository.resolve(), asked.version, not asked.without_packages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
