"""The commit that a record names: a label, for which nothing of the repository runs."""

import subprocess

from samebits.launcher.record_facts import commit_of


def git(folder, *words):
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True, capture_output=True
    )


def test_no_driver_or_monitor_of_the_repository_runs(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("1\n")
    (tmp_path / ".gitattributes").write_text("*.py diff=mine\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    for name in ("diff.external", "diff.mine.textconv", "diff.mine.command", "core.fsmonitor"):
        git(tmp_path, "config", name, f"touch '{tmp_path}/ran'; false")
    assert set(commit_of(tmp_path)) == {"commit"}
    (tmp_path / "train.py").write_text("2\n")
    assert set(commit_of(tmp_path)) == {"commit", "changes"}
    assert not (tmp_path / "ran").exists()
    assert commit_of(tmp_path / "gone") == {}
