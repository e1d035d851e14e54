"""A commit's worktree has the files that git does not know, and making it runs nothing of the user's."""

import subprocess

import pytest

from samebits.verify.repeat.commits import worktree


@pytest.fixture
def repository(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "part").mkdir(parents=True)
    (root / "part" / "train.py").write_text("1")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'called'}\n")
    hook.chmod(0o700)
    monkeypatch.chdir(root / "part")
    return root


def test_a_worktree_is_the_commit_with_unknown_files_and_without_compiled_ones(repository, tmp_path):
    for name in ("data", "__pycache__"):
        (repository / "part" / name).mkdir()
        (repository / "part" / name / "file").touch()
    (repository / "part" / "train.py").write_text("2")
    (repository / "part" / "new.py").touch()
    with worktree("HEAD", None, tmp_path) as commit:
        assert (commit.root, commit.folder) == (repository, commit.place / "part")
        assert (commit.folder / "train.py").read_text() == "1"
        assert sorted(path.name for path in commit.folder.iterdir()) == ["data", "new.py", "train.py"]
        # A script that is a link would import from beside what it links to.
        assert (commit.folder / "new.py").resolve().is_relative_to(commit.place)
    assert not commit.place.exists()
    assert not (tmp_path / "called").exists()


def test_a_worktree_that_a_killed_command_left_is_forgotten(repository, tmp_path):
    killed, own = tmp_path / "samebits-verify-1", repository.parent / "own"
    for place in (killed / "commit", own / "commit"):
        subprocess.run(["git", "worktree", "add", "-q", "--detach", place], cwd=repository, check=True)
        place.rename(tmp_path / f"gone-{place.parent.name}")
    with worktree("HEAD", None, tmp_path / "samebits-verify-2"):
        pass
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert str(killed) not in listed.stdout
    assert str(own) in listed.stdout, "it may be on a disk that is away"
