"""What a person asked for without effect is said once, in a sentence; what has an effect, not at all."""

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks

SCRIPT = """
import sys, torch, samebits

run = samebits.init(seed=0, lanes=2, {more})
loader = torch.utils.data.DataLoader(torch.randn(8, 4), 4)
model = torch.nn.Linear(4, 1)
model, optimizer, loader = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for epoch in run.epochs(2):
    for step in run.steps(loader):
        for x in step:
            run.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
UNUSED = 'name= and keep= say nothing without save_every=: no state is saved by itself. Add save_every="10min".'
NOTHING = "--check-every 50steps has nothing to compare: there is one rank."


def notices(run):
    assert run.code == 0, run.err
    return [line.partition("samebits: ")[2] for line in run.err.splitlines() if "samebits: " in line]


def test_a_name_without_states_and_checks_on_one_rank_are_told_once(tmp_path):
    script = SCRIPT.format(more='name="exp1", keep=5')
    assert notices(run_script(tmp_path, script, "-n", "1", "--check-every", "50steps")) == [UNUSED, NOTHING]
    assert notices(run_script(tmp_path, script, "-n", "2", "--check-every", "50steps")) == [UNUSED]


@pytest.mark.thorough
def test_what_has_an_effect_and_what_is_off_is_not_told(tmp_path):
    script = SCRIPT.format(more='name="exp1", keep=5, check_every="50steps"')
    assert (
        notices(
            run_script(tmp_path, script, "-n", "1", "--save-every", "1steps", "--name", "exp1", "--check-every", "off")
        )
        == []
    )


def test_checks_of_a_script_without_init_are_told(tmp_path):
    run = run_script(tmp_path, "print('alone')", "-n", "1", "--check-every", "5steps")
    assert run.err.count("warning   --check-every compared nothing: the script did not call samebits.init().") == 1
