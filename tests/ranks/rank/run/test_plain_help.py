"""A script that fails without `samebits run` has what to do behind its traceback."""

import pytest

from tests.support.launching import run_script, start_python, write_script

pytestmark = pytest.mark.ranks
SCRIPT = """
    import torch
    import samebits

    run = samebits.init()
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
"""
MODEL = "import torch; model = samebits.init().prepare(torch.nn.Linear(2, 1))"
GROUP = "import torch.distributed as d; run = samebits.init(); d.init_process_group('gloo', rank=0, world_size=1, store=d.HashStore())"
HELP = "help: To keep exact numerics, write `x.view(-1)[index] = values`."


@pytest.mark.thorough
def test_an_operation_without_a_deterministic_form_in_a_plain_script_is_followed_by_the_way_out(tmp_path):
    ended = start_python(tmp_path, write_script(tmp_path, SCRIPT)).finish()
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith(HELP)
    assert ended.err.count("help:") == 1


@pytest.mark.thorough
def test_under_the_launcher_it_is_said_once(tmp_path):
    ended = run_script(tmp_path, SCRIPT, "-n", "2")
    assert ended.err.count(HELP[6:]) == 1


@pytest.mark.thorough
def test_under_torchrun_each_rank_says_it(tmp_path):
    script = write_script(tmp_path, SCRIPT)
    ended = start_python(tmp_path, "-m", "torch.distributed.run", "--nproc-per-node=2", script).finish()
    assert f"[rank0]: {HELP}" in ended.err or f"[rank1]: {HELP}" in ended.err


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("samebits.init(lanes=-1)", "`lanes` must be"),
        ("samebits.init().steps(3)", "run.steps needs"),
        (f"{GROUP}; run.steps(3)", "run.steps needs"),
        (f"{MODEL}; model(torch.ones(3, 2)).sum().backward()", "loss.backward() was called on a prepared model"),
    ],
)
def test_a_misuse_is_two_lines_and_no_frame_of_the_package(tmp_path, line, problem):
    ended = start_python(tmp_path, write_script(tmp_path, f"import samebits\n{line}\n")).finish()
    assert ended.code == 2
    said, fix = ended.err[ended.err.index("error: ") :].splitlines()[:2]
    assert said.startswith(f"error: script.py:2: {problem}")
    assert fix.startswith("help: ")
    assert "Traceback" not in ended.err
    assert '.py"' not in ended.err


def test_a_hook_that_was_there_before_learns_of_a_misuse_too(tmp_path):
    script = "import sys\nsys.excepthook = lambda kind, error, trace: print('failed with', kind.__name__)\n"
    script += "import samebits\nsamebits.init(lanes=-1)\n"
    ended = start_python(tmp_path, write_script(tmp_path, script)).finish()
    assert (ended.code, ended.out) == (2, "failed with UsageError\n")
    assert ended.err.startswith("error: script.py:4: `lanes` must be")
