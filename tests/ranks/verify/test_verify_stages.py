"""`samebits verify` of models in stages: all stages' recordings are compared as one, and a planted mistake is named."""

import pytest

from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.trials.trials import PRELOADED, Program, Trials
from samebits.protocol.layout.mesh import Form
from samebits.verify.verify import Proof, verify

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import samebits

run = samebits.init(seed=0, lanes=4)
inputs = torch.randn(44, 6)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2{mistake})
loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=22, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
"""


@pytest.fixture(scope="module")
def nursery():
    with NurseryHandle(1, ("samebits.testing.short_end", *PRELOADED)) as nursery:
        yield nursery


def result_of(nursery, tmp_path, form, mistake="", ranks=2):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(mistake=mistake))
    program = Program(script, None, (), threads=1, device="cpu", form=form)
    with Trials(program, lambda *_: None, nursery) as trials:
        try:
            return verify(Proof(program, (1, ranks), None, 3), trials)
        finally:
            trials.remove()


FORMS = [
    pytest.param(Form("model_parallel"), 2, id="model_parallel", marks=pytest.mark.thorough),
    pytest.param(Form("pipeline"), 2, id="pipeline", marks=pytest.mark.thorough),
    pytest.param(Form(mesh="pipeline=2,ddp=2"), 4, id="replicas inside", marks=pytest.mark.thorough),
    pytest.param(Form(mesh="ddp=2,pipeline=2"), 4, id="stages inside", marks=pytest.mark.thorough),
]


@pytest.mark.parametrize(("form", "ranks"), FORMS)
def test_stages_are_proved_as_one_model(nursery, tmp_path, form, ranks):
    result = result_of(nursery, tmp_path, form, ranks=ranks)
    assert result.failed is None, result.failed
    assert result.exit_code == 0
    for row in result.rows:
        alone, staged = row.cells
        assert staged.differs_at is None
        assert (staged.digest, staged.num_items) == (alone.digest, alone.num_items)


@pytest.mark.thorough
def test_a_learning_rate_that_depends_on_the_stage_is_named(nursery, tmp_path):
    result = result_of(nursery, tmp_path, Form("model_parallel"), " * (1 + run.rank)")
    assert result.exit_code == 1
    assert result.difference is not None
    found = result.difference
    assert (found.difference.place.step, found.difference.place.item) == (1, "optimizer lr")
    assert (found.left, found.right) == ("rank 0 of 2", "rank 1 of 2")
