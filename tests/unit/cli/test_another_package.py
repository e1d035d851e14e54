"""Where another package has put its `__init__.py` over ours, the command says so, and the doctor still answers."""

import subprocess
import sys
from pathlib import Path

import pytest

import samebits


@pytest.mark.ranks
@pytest.mark.thorough
def test_a_strangers_init_over_ours_is_one_sentence_with_the_way_out(tmp_path):
    ours, mixed = Path(samebits.__file__).parent, tmp_path / "samebits"
    mixed.mkdir()
    for part in ours.iterdir():
        if part.name not in ("__init__.py", "__pycache__"):
            (mixed / part.name).symlink_to(part)
    (mixed / "__init__.py").write_text('"""Verifiable training."""\n')
    env = {"PATH": "/bin", "PYTHONPATH": str(tmp_path)}

    def samebits_of_both(*words):
        command = [sys.executable, "-m", "samebits", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)

    refused = samebits_of_both("run", "train.py")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 2)
    assert "Another package has put" in refused.stderr
    assert "samebits" in samebits_of_both("doctor").stdout
