"""A commit's worktree has the files that git does not know, and making it runs nothing of the user's."""

import subprocess

import pytest

from samebits.errors import UsageError
from samebits.verify.repeat.commits import worktree

COMMIT = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam"]


def git(folder, *words):
    subprocess.run(["git", "-c", "protocol.file.allow=always", *words], cwd=folder, check=True)


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


@pytest.fixture
def with_submodules(repository, tmp_path):
    """A repository with a submodule in a submodule, both of them at other commits now."""
    for name in ("inner", "outer"):
        own = tmp_path / name
        own.mkdir()
        git(own, "init", "-q")
        (own / "code.py").write_text("1")
        git(own, "add", ".")
        git(own, *COMMIT, "one")
    git(tmp_path / "outer", "submodule", "--quiet", "add", str(tmp_path / "inner"), "inner")
    git(tmp_path / "outer", *COMMIT, "two")
    git(repository, "submodule", "--quiet", "add", str(tmp_path / "outer"), "outer")
    git(repository, *COMMIT, "two")
    git(repository, "submodule", "--quiet", "update", "--init", "--recursive")
    for path in ("outer/inner", "outer", "."):
        (repository / path / "code.py").write_text("2")
        git(repository / path, "add", "code.py")
        git(repository / path, *COMMIT, "three")
    return repository


def test_submodules_are_those_of_the_commit_and_nothing_is_asked_from_the_network(with_submodules, tmp_path):
    for name in ("inner", "outer"):
        (tmp_path / name).rename(tmp_path / f"{name}-that-is-away")
    (with_submodules / "outer" / "data").touch()
    with worktree("HEAD~1", None, tmp_path) as commit:
        assert (commit.place / "outer" / "code.py").read_text() == "1"
        assert (commit.place / "outer" / "inner" / "code.py").read_text() == "1"
        assert (commit.place / "outer" / "data").is_symlink()
    assert not commit.place.exists()
    git(with_submodules, "diff", "--exit-code", "--ignore-submodules=untracked")


def test_a_submodule_that_is_not_here_is_one_sentence_or_missing_on_both_sides(with_submodules, tmp_path):
    git(with_submodules, "rm", "-q", "outer")
    with (
        pytest.raises(UsageError, match="has the submodule outer, but this tree does not"),
        worktree("HEAD", None, tmp_path),
    ):
        pass
    (with_submodules / "outer").mkdir()
    with worktree("HEAD", None, tmp_path) as commit:
        assert not [*(commit.place / "outer").iterdir()]


def test_a_file_that_git_lfs_has_not_fetched_is_one_sentence(repository, tmp_path):
    (repository / ".gitattributes").write_text("*.bin filter=lfs\n")
    (repository / "data.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    git(repository, "add", ".")
    git(repository, *COMMIT, "two")
    with worktree("HEAD", None, tmp_path):
        pass
    (repository / "data.bin").write_text("abc")
    with pytest.raises(UsageError, match=r"data\.bin of .* is not here"), worktree("HEAD", None, tmp_path):
        pass
