"""What `--numerics` and `--precision` set, print and record; and that "fast" is right up to rounding."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import samebits
from samebits.launcher.trials.trials import Program, Trials
from samebits.protocol.arithmetic import NOT_EXACT, Arithmetic
from samebits.rank.init.numerics import flags
from samebits.testing.ranks import RankFailed, Started, run_ranks
from samebits.verify.report import sentences
from samebits.verify.verify import Proof, verify
from tests.scripts import scenarios
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=7, lanes=4, precision="32", numerics={numerics!r})
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(44, 6), torch.arange(44) % 3), batch_size=22)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for step in run.steps(loader):
    for x, y in step:
        out = model(x)
        run.backward(F.cross_entropy(out, y))
    optimizer.step()
    optimizer.zero_grad()
run.print(out.dtype, torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark)
"""


@promise(
    "what-was-decided",
    "Seed, precision, numerics and every flag are printed in one line and recorded in `decided.json`; the "
    "command line beats the script",
    also=["test_exact_numerics_are_the_default_and_every_flag_is_recorded"],
)
def test_what_was_decided_is_printed_and_recorded_and_the_command_line_wins(tmp_path):
    run = run_script(tmp_path, SCRIPT.format(numerics="exact"), "-n", "2", "--precision", "bf16", "--numerics", "fast")
    assert run.code == 0, run.err
    assert "torch.bfloat16 False True" in run.out
    assert "numerics  fast, bf16-mixed: seed 7, any kernels and order of sums: bits may differ" in run.err
    recorded = json.loads((run.folder / "decided.json").read_text())["arithmetic"]
    assert recorded["flags"]["cudnn.benchmark"]
    assert (recorded["flags"]["OMP_NUM_THREADS"], recorded["flags"]["PYTHONHASHSEED"]) == ("1", "0")
    assert recorded["flags"]["torch.deterministic_debug_mode"] == 0
    plan = json.loads((run.folder / "plan.json").read_text())
    assert (plan["precision"], plan["numerics"]) == ("bf16", "fast")


def flags_of_both():
    told = []
    for numerics in (None, "fast"):
        samebits.init(numerics=numerics)
        told.append(flags())
    return told


def test_exact_numerics_are_the_default_and_every_flag_is_recorded():
    [[exact, fast]] = run_ranks(flags_of_both, Started(1))
    free = {"OMP_NUM_THREADS", "PYTHONHASHSEED", "dynamo.automatic_dynamic_shapes"}
    assert {name: value for name, value in exact.items() if name not in free} == {
        "torch.deterministic_debug_mode": 2,
        "cudnn.deterministic": True,
        "cudnn.benchmark": False,
        "cuda.matmul.fp32_precision": "none",
        "cudnn.conv.fp32_precision": "tf32",
        "cudnn.rnn.fp32_precision": "tf32",
        "mkldnn.matmul.fp32_precision": "none",
        "mkldnn.conv.fp32_precision": "none",
        "mkldnn.rnn.fp32_precision": "none",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_DETERMINISTIC": "1",
    }
    assert {name for name in exact if exact[name] != fast[name]} == {
        *("torch.deterministic_debug_mode", "cudnn.deterministic", "cudnn.benchmark", "TORCHINDUCTOR_DETERMINISTIC"),
    }


def weights(numerics):
    run = samebits.init(seed=0, lanes=5, numerics=numerics)
    model = scenarios.Cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(scenarios.digits(), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    losses = []
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(step.loss))
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy(), losses


def both_numerics():
    return weights("exact"), weights("fast")


@promise(
    "what-was-decided",
    '`numerics="fast"` gives the same gradient up to rounding, and equal replicas',
)
@pytest.mark.thorough
def test_fast_numerics_add_up_the_same_gradient_on_every_rank():
    [((exact, _), (alone, _))] = run_ranks(both_numerics, Started(1))
    assert np.array_equal(exact, alone), "one rank has no order to leave to anybody"
    for started in (Started(2), Started(3), Started(2, lanes=2)):
        told = run_ranks(both_numerics, started)
        (expected, losses), (first, _) = told[0]
        for (exact_here, _), (fast, fast_losses) in told:
            assert np.array_equal(exact_here, exact if started.lanes is None else expected)
            assert np.array_equal(fast, first), "replicas stay equal"
            assert np.allclose(fast, exact_here, atol=1e-5)
            assert fast_losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.thorough
def test_verify_says_that_fast_numerics_promise_no_bits(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(numerics="fast"))
    program = Program(script=script, module=None, args=(), threads=1, device="cpu")
    with Trials(program, lambda label, seconds: None) as trials:
        findings = verify(Proof(program, (1, 2), None, 1), trials)
        trials.remove()
    assert findings.failed is None, findings.failed
    assert findings.as_json()["numerics"] == "fast"
    assert any(NOT_EXACT in line for line, _ in sentences(findings))
    assert any("numerics is fast" in missing for missing in findings.not_proved())


UNDOES = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=7, lanes=4, threads=1)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = False
torch.use_deterministic_algorithms(True, warn_only=True)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(44, 6), torch.arange(44) % 3), batch_size=11)
model, optimizer, loader = run.prepare(model, optimizer, loader)

def seen():
    cudnn = torch.backends.cudnn
    return torch.get_num_threads(), cudnn.benchmark, cudnn.deterministic, torch.get_deterministic_debug_mode()

for step in run.steps(loader):
    for x, y in step:
        assert seen() == {seen}, seen()
        run.backward(F.cross_entropy(model(x), y))
    torch.set_num_threads(4)
    optimizer.step()
    optimizer.zero_grad()
for x, y in loader:
    assert seen() == {seen}, seen()
print("rank ends")
"""


@promise(
    "what-was-decided",
    "Lines of a script that would undo exact numerics are taken back when the next step or evaluation "
    "begins, and named once; a loop that is left early leaves autocast",
    also=["test_a_loop_that_is_left_early_leaves_autocast_too"],
)
@pytest.mark.parametrize(
    ("numerics", "seen", "kept"),
    [
        ("exact", "(1, False, True, 2)", True),
        pytest.param("fast", "(4 if step.number > 1 else 1, True, False, 1)", False, marks=pytest.mark.thorough),
    ],
)
def test_lines_of_a_script_that_undo_exact_numerics_are_taken_back_and_said_once(tmp_path, numerics, seen, kept):
    run = run_script(tmp_path, UNDOES.format(seen=seen), "-n", "2", "--numerics", numerics)
    assert run.code == 0, run.err
    for words in (
        *("torch.set_num_threads(4) in the script is taken back", "--threads 4"),
        *("cudnn.benchmark = True in the", "cudnn.deterministic = False in the"),
        "torch.set_deterministic_debug_mode(1), or what does the same, in the script is taken back",
    ):
        assert run.err.count(words) == kept, run.err
    flags = json.loads((run.folder / "decided.json").read_text())["arithmetic"]["flags"]
    assert flags["cudnn.benchmark"] is not kept


ALLOWS = """
import samebits, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(32, 3)

    def forward(self, x):
        top, places = F.max_pool2d(self.conv(x), 2, return_indices=True)
        return self.head(F.max_unpool2d(top, places, 2).flatten(1))

run = samebits.init(seed=7, lanes=4, threads=1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(44, 1, 4, 4), torch.arange(44) % 3), batch_size=22)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for step in run.steps(loader):
    for x, y in step:
        run.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_an_operator_that_is_allowed_runs_and_everything_else_stays_exact(tmp_path):
    folders = [tmp_path / name for name in ("refused", "allowed", "misspelled")]
    for folder in folders:
        folder.mkdir()
    refused = run_script(folders[0], ALLOWS, "-n", "2")
    assert refused.code == 1
    assert "--allow max_unpool2d" in refused.err
    run = run_script(folders[1], ALLOWS, "-n", "2", "--allow", "max_unpool2d")
    assert run.code == 0, run.err
    assert "deterministic algorithms but for max_unpool2d" in run.err
    assert "another run may give others" in run.err
    decided = json.loads((run.folder / "decided.json").read_text())
    assert decided["arithmetic"]["flags"]["torch.deterministic_debug_mode"] == 2
    assert "lets max_unpool2d compute without a deterministic form" in decided["not_exact"]
    wrong = run_script(folders[2], ALLOWS, "--allow", "max_unpol2d")
    assert wrong.code == 2
    assert "Try max_unpool2d." in wrong.err


@pytest.mark.thorough
def test_verify_says_what_an_allowed_operator_leaves_unproved(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(ALLOWS)
    allowed = Arithmetic(allow=("max_unpool2d",))
    program = Program(script=script, module=None, args=(), threads=1, device="cpu", arithmetic=allowed)
    with Trials(program, lambda label, seconds: None) as trials:
        findings = verify(Proof(program, (1, 2), None, 1), trials)
        trials.remove()
    assert findings.failed is None, findings.failed
    assert findings.as_json()["allow"] == ["max_unpool2d"]
    assert any("Everything else is exact" in line for line, _ in sentences(findings))
    assert any("what passes through max_unpool2d" in missing for missing in findings.not_proved())


def own_and_ours():
    run = samebits.init(lanes=2, precision=16)
    model = scenarios.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(scenarios.digits(32), batch_size=16))
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(scaler.scale(F.cross_entropy(model(images), labels)) * 2.0**-16)
        scaler.step(optimizer)


def ranks_that_disagree():
    rank = int(__import__("os").environ["RANK"])
    samebits.init(precision="32" if rank else "bf16")


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (own_and_ours, "Leave out the GradScaler"),
        (ranks_that_disagree, "`precision` must be the same on every rank, but the ranks have ['bf16-mixed', '32']"),
    ],
)
def test_a_mistake_with_precision_is_one_sentence(mistake, sentence):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(2, timeout_s=30))
    assert caught.value.error_type == "UsageError"
    assert sentence in caught.value.message


def test_a_wrong_name_on_the_command_line_ends_before_anything_starts(tmp_path):
    run = run_script(tmp_path, SCRIPT.format(numerics=None), "--precision", "bf16-true")
    assert run.code == 2
    assert "Use model.to(torch.bfloat16) before run.prepare, or bf16-mixed." in run.err
    assert run.folder is None
    assert not list(Path(tmp_path).glob("samebits-runs/*"))
