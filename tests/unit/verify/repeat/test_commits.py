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
    with worktree("HEAD", None, tmp_path) as commit:
        assert (commit.root, commit.folder) == (repository, commit.place / "part")
        assert (commit.folder / "train.py").read_text() == "1"
        assert sorted(path.name for path in commit.folder.iterdir()) == ["data", "train.py"]
    assert not commit.place.exists()
    assert not (tmp_path / "called").exists()
