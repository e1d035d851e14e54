"""`make release`: what it refuses, and that it ends before anything leaves the machine."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shipping.release import dated, main, objection, unreleased

ROOT = Path(__file__).parents[3]
CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n- A thing.\n\n## 0.1.0 (2026-01-02)\n\n- Older.\n"


@pytest.mark.parametrize("text", ["", "1", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3\n", "1.-2.3"])
def test_a_malformed_version_is_refused_in_one_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--", text]) == 2
    said = capsys.readouterr().err
    assert "give three numbers" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("version", "reason"),
    [((0, 1, 0), "exists"), ((0, 0, 9), "not newer"), ((0, 2, 0), "not newer"), ((0, 3, 0), ""), ((0, 10, 0), "")],
)
def test_a_version_must_be_newer_than_every_tag_and_than_the_one_in_the_package(version, reason) -> None:
    said = objection(version, ["v0.1.0", "v0.0.3", "vacation"], (0, 3, 0), "- A thing.")
    assert (reason in said) if reason else said == ""


@pytest.mark.parametrize("changes", [None, "", "\n\n"])
def test_a_release_without_a_word_in_the_changelog_is_refused(changes: str | None) -> None:
    assert "Unreleased" in objection((0, 2, 0), [], (0, 1, 0), changes)


def test_what_was_unreleased_gets_the_version_and_its_day() -> None:
    assert "A thing" in (unreleased(CHANGELOG) or "")
    told = dated(CHANGELOG, "0.2.0", dt.date(2026, 3, 4))
    assert (
        told.index("## Unreleased")
        < told.index("## 0.2.0 (2026-03-04)")
        < told.index("A thing")
        < told.index("## 0.1.0")
    )
    assert (unreleased(told) or "").strip() == ""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This repository with an author to commit as."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "A test")
        monkeypatch.setenv(f"{name}_EMAIL", "test@localhost")
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "clone"], check=True, timeout=60)
    for tag in git(tmp_path / "clone", "tag").split():
        git(tmp_path / "clone", "tag", "--delete", tag)
    log = tmp_path / "clone" / "CHANGELOG.md"
    log.write_text(CHANGELOG)
    if git(tmp_path / "clone", "status", "--porcelain"):
        git(tmp_path / "clone", "commit", "--quiet", "--all", "--message", "Begin")
    return tmp_path / "clone"


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def released(clone: Path, version: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shipping.release", version, "--without-packages", "--repository", str(clone)]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=60, check=False)


def test_a_release_is_a_commit_and_a_tag_and_the_command_that_uploads_it(clone: Path) -> None:
    done = released(clone, "7.8.9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("twine upload dist/samebits-7.8.9*")
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "log", "-1", "--format=%s").strip() == "Release 7.8.9"
    assert git(clone, "rev-parse", "v7.8.9^{commit}") == git(clone, "rev-parse", "HEAD")
    package = "src/samebits/protocol/installation.py"
    assert git(clone, "diff", "--name-only", "HEAD~").split() == ["CHANGELOG.md", package]
    assert 'VERSION = "7.8.9"' in (clone / package).read_text()
    today = dt.datetime.now(dt.UTC).date()
    assert f"## 7.8.9 ({today})" in (clone / "CHANGELOG.md").read_text()
    again = released(clone, "7.8.9")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "exists" in again.stderr


def test_nothing_is_released_from_a_checkout_with_changes(clone: Path) -> None:
    (clone / "README.md").write_text("changed")
    before = git(clone, "rev-parse", "HEAD")
    done = released(clone, "7.8.9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "commit or stash" in done.stderr
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "tag")) == (before, "")
    assert (clone / "CHANGELOG.md").read_text() == CHANGELOG
