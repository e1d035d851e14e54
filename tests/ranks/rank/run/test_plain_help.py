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


def test_a_mistake_in_a_plain_script_is_its_line_and_two_more(tmp_path):
    text = """
        import torch
        import samebits

        run = samebits.init()
        model = run.prepare(torch.nn.Linear(2, 1))
        model(torch.ones(3, 2)).sum().backward()
    """
    ended = start_python(tmp_path, write_script(tmp_path, text)).finish()
    assert ended.code == 1
    file, line, problem, fix = ended.err[ended.err.index("  File") :].splitlines()[:4]
    assert (file.endswith('script.py", line 7, in <module>'), line.strip()) == (
        True,
        "model(torch.ones(3, 2)).sum().backward()",
    )
    assert problem.startswith("error: loss.backward() was called on a prepared model")
    assert fix.startswith("help: Call run.backward(loss)")
    assert "site-packages" not in ended.err
