"""`zero1`: each rank updates its share; bits, meaning and mistakes are those of one rank."""

import json

import pytest

from samebits.bench.bench import Runners, measure
from samebits.bench.plan import Amount, Bench
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Program, Trials
from samebits.protocol.layout.mesh import Form, choose_mesh
from samebits.rank.init import join
from samebits.rank.run import start
from samebits.testing.ranks import RankFailed, Started, run_ranks
from samebits.verify.verify import Proof, verify
from tests.scripts import embeddings, precisions, zero1_mistakes, zero1_scripts, zero1_surgery
from tests.support.launching import start as start_run
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
ZERO1 = Form("zero1")
SLOW = {"writes_between_steps", "own_optimizers", "states_of_single_parameters"}
SCRIPTS = [
    pytest.param(one, id=one.__name__, marks=[pytest.mark.thorough] * (one.__name__ in SLOW))
    for one in (*zero1_scripts.SCRIPTS, *zero1_surgery.SCRIPTS)
]


@promise(
    "shares-of-an-update-stages-of-a-model",
    "`zero1` on 2 and 3 ranks has the bits of one, parameters and optimizer state, for SGD, Adam, "
    "AdamW, Adagrad, RMSprop, Adafactor, Muon and custom optimizers, in every form",
    also=["test_an_element_wise_optimizer_has_the_same_bits_by_chunks"],
)
@promise(
    "shares-of-an-update-stages-of-a-model",
    "Under `zero1` what a script writes between steps counts, groups may join later, and hooks see whole parameters",
)
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_the_bits_of_one_rank(script, ranks):
    [alone] = run_ranks(script, Started(1))
    assert run_ranks(script, Started(ranks, form=ZERO1)) == [alone] * ranks


def over_gloo(script):
    join.native.why_not = lambda: "this test wants Gloo"
    result = script()
    transport = start._present[-1].components.transport
    control = getattr(transport, "control", transport)  # with a GPU each, what is not on one
    assert control.__class__.__name__ == "GroupTransport"
    return result


@pytest.mark.parametrize(
    "script",
    [
        zero1_scripts.states,
        pytest.param(zero1_scripts.two_optimizers_of_one_model, marks=pytest.mark.thorough),
        pytest.param(embeddings.rows_in_several_backwards, marks=pytest.mark.thorough),
    ],
)
def test_ranks_that_share_no_memory_hand_the_parameters_around(script):
    [alone] = run_ranks(script, Started(1))
    assert run_ranks(over_gloo, Started(3, form=ZERO1), script) == [alone] * 3


@pytest.mark.thorough
def test_mixed_precision_has_the_bits_of_one_rank():
    [alone] = run_ranks(precisions.every_precision, Started(1))
    assert run_ranks(precisions.every_precision, Started(2, form=ZERO1)) == [alone] * 2


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Under `zero1` 24 mistakes (a step on one rank only, an unknown optimizer, …) raise one sentence, "
    "and a graph from before an update raises on every rank",
    also=["test_autograd_sees_the_update_of_other_ranks"],
)
@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.thorough] * (one not in zero1_mistakes.RANKS_DIFFER))
        for one in zero1_mistakes.MISTAKES
    ],
)
def test_a_mistake_is_one_sentence_on_every_rank(mistake):
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(2, form=ZERO1, timeout_s=30))
    assert caught.value.error_type == "UsageError"
    assert zero1_mistakes.MISTAKES[mistake] in caught.value.message


def test_autograd_sees_the_update_of_other_ranks():
    assert run_ranks(zero1_scripts.graph_from_before, Started(3, form=ZERO1)) == [True] * 3


@promise(
    "shares-of-an-update-stages-of-a-model",
    "Under `zero1` each rank keeps its share of the state and no more; shares are equal to 1024 "
    "elements; an unused parameter gets no state",
    also=["test_an_unused_parameter_is_not_updated_and_gets_no_state", "test_ranks_update_equally_much"],
)
def test_each_rank_keeps_its_share_of_the_state():
    told = run_ranks(zero1_scripts.shares_of_state, Started(3, form=ZERO1))
    [total] = {total for _, total, _ in told}
    assert sum(kept for kept, _, _ in told) == total
    assert max(kept for kept, _, _ in told) <= total / 3 + 1024
    assert {entries for _, _, entries in told} == {10}


def test_an_unused_parameter_is_not_updated_and_gets_no_state():
    assert run_ranks(zero1_scripts.never_used, Started(2, form=ZERO1)) == [[0, 1], [0, 1]]


SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=4, strategy={strategy!r})
inputs = torch.randn(44, 60)
model = nn.Sequential(nn.Linear(60, 80), nn.BatchNorm1d(80), nn.ReLU(), nn.Dropout(0.2), nn.Linear(80, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2{mistake})
loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=22, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(4):
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
"""


def program(tmp_path, form, mistake="", strategy=None):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(mistake=mistake, strategy=strategy))
    return Program(script, None, (), threads=1, device="cpu", form=form)


@pytest.fixture(scope="module")
def nursery():
    with NurseryHandle(1, ("samebits.testing.short_end", *PRELOADED)) as nursery:
        yield nursery


def proved(nursery, proof):
    with Trials(proof.program, lambda *_: None, nursery) as trials:
        try:
            return verify(proof, trials)
        finally:
            trials.remove()


@pytest.mark.thorough
def test_verify_compares_the_whole_state_of_the_optimizer(nursery, tmp_path):
    findings = proved(nursery, Proof(program(tmp_path, ZERO1), (1, 2, 3), None, 3))
    assert findings.failed is None, findings.failed
    assert findings.exit_code == 0
    for row in findings.rows:
        alone, *others = row.cells
        assert all((other.digest, other.num_items) == (alone.digest, alone.num_items) for other in others)
    [states] = [row for row in findings.rows if row.key == "optimizer"]
    assert states.num_items > 3 * 6


@pytest.mark.thorough
def test_verify_tells_a_learning_rate_that_looks_at_the_rank(nursery, tmp_path):
    findings = proved(nursery, Proof(program(tmp_path, ZERO1, " * (1 + run.rank)"), (1, 2), None, 3))
    assert findings.exit_code == 1
    assert "AdamW has lr=0.01 on rank 0 but lr=0.02 on rank 1" in findings.failed.text


@pytest.mark.thorough
def test_bench_measures_it_and_finds_the_same_bits(nursery, tmp_path):
    bench = Bench(program(tmp_path, Form()), ("single", "zero1"), (2,), None, Amount(4, 1, warm_up=2), cores=1)
    with Trials(bench.program, lambda *_: None, nursery, purpose="bench") as trials:
        try:
            results = measure(bench, Runners(trials, None, lambda _: None))
        finally:
            trials.remove()
    assert results.exit_code == 0
    assert {one.configuration.strategy for one in results.measured} == {"single", "zero1"}
    [bits] = {one.bits for one in results.measured}
    assert bits


@pytest.mark.thorough
def test_the_command_and_the_script_may_name_it(tmp_path):
    path = program(tmp_path, Form(), strategy="zero1").script
    bits = set()
    for ranks, named, decided in ((2, None, "zero1"), (2, "ddp", "ddp")):
        place = tmp_path / f"{ranks}-{named}"
        place.mkdir()
        options = ["--strategy", named] if named else []
        done = start_run(place, "-n", str(ranks), "--threads", "1", *options, str(path)).finish()
        assert done.code == 0, done.err
        assert json.loads((done.folder / "decided.json").read_text())["strategy"] == decided
        bits.add(json.loads((done.folder / "result.json").read_text())["bits"])
    assert len(bits) == 1


def test_one_rank_is_single():
    assert choose_mesh(ZERO1, 1).strategy == "single"
    assert choose_mesh(Form("zero"), 2).strategy == choose_mesh(Form("ZeRO-1"), 2).strategy == "zero1"
