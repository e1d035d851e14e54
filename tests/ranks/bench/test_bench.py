"""`samebits bench` on real tiny scripts with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.bench.bench import Runners, measure
from samebits.bench.plan import Amount, Bench
from samebits.bench.results import Results
from samebits.errors import UsageError
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Program, Trials
from tests.support.launching import killed_at_the_end
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, {init})
inputs = torch.randn(40, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=20)
model, optimizer, loader = run.prepare(model, optimizer, loader)
run.save_weights(model, "untrained.safetensors")
for epoch in run.epochs({epochs}):
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        {update}
        optimizer.zero_grad()
        {after}
"""
HONEST = {"init": "lanes=2", "epochs": 50, "update": "optimizer.step()", "after": "pass"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[NurseryHandle]:
    with NurseryHandle(1, ("samebits.testing.short_end", *PRELOADED)) as nursery:
        yield nursery


class Bencher:
    def __init__(self, folder: Path, nursery: NurseryHandle) -> None:
        self.folder, self.nursery = folder, nursery
        self.said: list[str] = []

    def __call__(self, *, strategies: tuple[str, ...] = ("single", "ddp"), rounds: int = 2, **slots: object) -> Results:
        script = self.folder / "train.py"
        script.write_text(SCRIPT.format(**HONEST | slots))
        program = Program(script, None, (), threads=1, device="cpu")
        bench = Bench(program, strategies, (2,), None, Amount(4, rounds, warm_up=2), cores=1)
        with Trials(program, lambda *_: None, self.nursery, purpose="bench") as trials:
            try:
                return measure(bench, Runners(trials, None, self.said.append))
            finally:
                trials.remove()


@pytest.fixture
def measured(tmp_path: Path, nursery: NurseryHandle) -> Bencher:
    return Bencher(tmp_path, nursery)


@pytest.mark.thorough
def test_the_command_measures_draws_and_tells_everything(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(**HONEST))
    options = ["--ranks", "2", "--threads", "1", "--steps", "4", "--rounds", "2", "--json", "--plot", "speed.png"]
    command = [sys.executable, "-m", "samebits", "bench", *options, "train.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert any(
        said.startswith(("Fastest: ", "Nothing is faster", "Nothing is clearly faster")) for said in told["says"]
    )
    names = [one["name"] for one in told["configurations"]]
    assert names[:2] == ["single", "ddp on 2"]
    assert names[2:] in ([], ["1 rank, all cores"])
    assert [one["exact"] for one in told["configurations"][:2]] == ["reference", "same bits"]
    for one in told["configurations"]:
        assert [len(each["step_ms"]) for each in one["rounds"]] == [4, 4]
        assert all(samples == 20 for each in one["rounds"] for samples in each["samples"])
        assert sum(one["shares"].values()) == pytest.approx(1)
        assert one["shares"]["compute"] > 0
        assert one["memory_bytes"]["rank_peak"] > 50 << 20
        assert one["memory_bytes"]["node"] > 10 << 20
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"^round 1 of 2: \d configurations in [\d.]+ s, about \d+ s left$", ended.stderr, re.MULTILINE)
    assert not list(tmp_path.glob("samebits-bench-*"))
    assert not (tmp_path / "untrained.safetensors").exists(), "a bench leaves the files of its user alone"


@promise(
    "what-verify-proves",
    "`samebits bench` ends with 0 only when every configuration was measured; one that fails is a row "
    "with its reason; bits that depend on the ranks are found",
    also=["test_bits_that_depend_on_the_ranks_are_found"],
)
@pytest.mark.thorough
def test_a_configuration_that_fails_is_a_row_and_the_others_go_on(measured: Bencher) -> None:
    results = measured(after="assert run.world_size == 1, 'too many'")
    single, ddp = results.measured[:2]
    assert len(single.rounds) == 2
    assert not ddp.rounds
    assert ddp.failed.endswith("AssertionError: too many")
    assert results.exit_code == 1


@pytest.mark.thorough
def test_bits_that_depend_on_the_ranks_are_found(measured: Bencher) -> None:
    results = measured(rounds=1, init="lanes=2", after="model[0].bias.data += 0.001 * run.world_size")
    assert [results.exactness(one) for one in results.measured[:2]] == ["reference", "differs"]


@pytest.mark.thorough
def test_stages_are_measured_with_their_work_and_their_waits(measured: Bencher) -> None:
    results = measured(strategies=("single", "model_parallel", "pipeline"), rounds=1, init="lanes=4")
    assert not [one.failed for one in results.measured if one.failed]
    assert [results.exactness(one) for one in results.measured[:3]] == ["reference", "same bits", "same bits"]
    for one in results.measured[1:3]:
        first, second = one.rounds[0].stages
        assert set(first.layers).isdisjoint(second.layers)
        assert min(first.busy_s, second.busy_s, first.wait_s, second.wait_s) > 0
    for intervals in results.measured[2].rounds[0].one_step:
        work = [piece.operation for piece in intervals]
        assert {f"{kind} {lane}" for kind in ("forward", "backward") for lane in range(4)} <= set(work)
        assert "wait" in work


@pytest.mark.thorough
def test_a_script_with_too_few_steps_is_told_how_many_it_makes(measured: Bencher) -> None:
    with pytest.raises(
        UsageError, match=r"runs 4 steps, but 6 are needed: 2 to warm up.*Train for more epochs, or use --steps 2"
    ):
        measured(epochs=2)


@promise("what-verify-proves", "Ctrl-C in `samebits bench` shows what was measured so far and leaves nothing")
@pytest.mark.thorough
def test_ctrl_c_shows_what_was_measured_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(**HONEST))
    options = ["--ranks", "2", "--threads", "1", "--steps", "4", "--rounds", "1000"]
    command = [sys.executable, "-m", "samebits", "bench", *options, "train.py"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with killed_at_the_end(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        if said.startswith("note: this machine is busy"):
            said = process.stderr.readline()
        assert said.startswith("first run, not counted: ")
        assert process.stderr.readline().startswith("round 1 of 1000: ")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "ddp on 2" in out
    assert "of 1000 rounds in turn" in out
    assert not list(tmp_path.glob("samebits-bench-*"))
