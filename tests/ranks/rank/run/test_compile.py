"""`torch.compile` before or after `prepare`: the same bits on any number of ranks, single-device keys in files."""

import subprocess
import sys
from pathlib import Path

import pytest

from samebits.testing.ranks import Started, run_ranks
from tests.scripts import compiled
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


@promise(
    "same-bits",
    "`torch.compile`, before or after `prepare`, whole or in part, has the same bits on 1, 2 and 4 ranks",
    also=["test_compiled_before_or_after_prepare_whole_or_in_part_the_bits_are_the_same"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_compiled_model_has_the_same_bits_on_1_2_and_4_ranks(ranks):
    if not compiled.COMPILER:
        print("no C++ compiler was found: aot_eager instead of inductor", file=sys.stderr)
    [alone] = run_ranks(compiled.as_users_do, Started(1, timeout_s=240))
    assert run_ranks(compiled.as_users_do, Started(ranks, timeout_s=240)) == [alone] * ranks


@promise(
    "same-bits",
    "Lanes of up to 64 sizes are all compiled, or the run ends in one sentence",
    also=["test_more_sizes_than_torch_compiles_are_a_mistake_in_a_sentence"],
)
@pytest.mark.compiles
@pytest.mark.thorough
def test_lanes_of_many_sizes_are_all_compiled_on_any_number_of_ranks():
    [alone] = run_ranks(compiled.many_sizes, Started(1, timeout_s=240))
    assert run_ranks(compiled.many_sizes, Started(4, timeout_s=240)) == [alone] * 4


@pytest.mark.thorough
@pytest.mark.compiles
def test_compiled_before_or_after_prepare_the_bits_are_the_same():
    [alone] = run_ranks(compiled.before_and_after, Started(1, timeout_s=240))
    assert run_ranks(compiled.before_and_after, Started(2, timeout_s=240)) == [alone] * 2


@pytest.mark.thorough
def test_compiled_before_or_after_prepare_whole_or_in_part_the_bits_are_the_same():
    [alone] = run_ranks(compiled.every_way, Started(1))
    assert run_ranks(compiled.every_way, Started(2)) == [alone] * 2


ONCE = """
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits

os.environ["TO_KILL"] = str(os.getpid())
run = samebits.init(seed=0, lanes=2, threads=1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(16, 16)), batch_size=8)
model, optimizer, loader = run.prepare(model, optimizer, loader)
compiled = torch.compile(lambda x: model(x).softmax(1).square().mean())
for step in run.steps(loader):
    for (x,) in step:
        run.backward(compiled(x))
    optimizer.step()
    optimizer.zero_grad()
"""
COMPILER = """#!/bin/sh
# as the compiler; writes down what it makes; the first library stays half written, and its rank is killed
made=$(echo "$*" | sed 's/.* -o \\([^ ]*\\).*/\\1/')
echo "$made" >> {log}
case "$made" in *.main.so) if mkdir {log}.once 2> /dev/null; then
    head -c 5000 /dev/zero > "$made"
    kill -9 $TO_KILL
    exit 1
fi;; esac
exec {compiler} "$@"
"""


@promise("same-bits", "A killed compilation breaks no later run")
@pytest.mark.thorough
@pytest.mark.compiles
@pytest.mark.skipif(not compiled.COMPILER, reason="no C++ compiler")
def test_a_killed_compilation_breaks_no_later_run_and_ranks_compile_each_graph_once(tmp_path, monkeypatch):
    compiler, log = tmp_path / "g++", tmp_path / "made"
    compiler.write_text(COMPILER.format(log=log, compiler=compiled.COMPILER))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(ONCE)
    command = [sys.executable, "-m", "samebits", "run", "--recover", "off", "-n"]
    killed = subprocess.run([*command, "1", "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "SIGKILL" in killed.stderr
    half = [file for file in (tmp_path / "cache").glob("*/*.so") if not file.stat().st_mode & 0o100]
    assert len(half) == 1
    log.unlink()
    again = subprocess.run([*command, "2", "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    libraries = [name for name in log.read_text().split() if name.endswith(".main.so")]
    assert str(half[0]) in libraries
    assert len(libraries) == len(set(libraries)), "the second rank reads what the first has compiled"
    assert all(Path(name).stat().st_mode & 0o100 for name in libraries)
