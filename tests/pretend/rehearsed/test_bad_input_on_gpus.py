"""GPUs that a run cannot have: one sentence before anything starts, and never the CPU in silence."""

import re

import pytest

from tests.support.launching import run_script, start_python, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
CPU_BUILD = {"PRETENDED_BUILD": "{}"}


@pytest.mark.parametrize(
    ("env", "options", "sentence"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, (), "CUDA_VISIBLE_DEVICES='' hides the 4 GPUs of this machine."),
        ({"CUDA_VISIBLE_DEVICES": "9"}, (), "CUDA_VISIBLE_DEVICES='9' hides the 4 GPUs of this machine."),
        ({"CUDA_VISIBLE_DEVICES": "GPU-other"}, (), "CUDA_VISIBLE_DEVICES='GPU-other' hides the 4 GPUs of this machine."),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, (), "CUDA_VISIBLE_DEVICES='1,1' hides the 4 GPUs of this machine."),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("-n", "2"), "2 ranks need 2 GPUs, but there is 1 here."),
        ({}, ("-n", "5"), "5 ranks need 5 GPUs, but there are 4 here."),
        (CPU_BUILD, (), "The installed torch is a CPU build, which cannot use the 4 GPUs of this machine."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_with_the_way_out(env, options, sentence, tmp_path):
    ended = run_script(tmp_path, "print('never')", "--device", "cuda", *options, env=env)
    assert ended.code == 2
    assert f"error: {sentence}" in ended.err
    assert len(re.findall(r"^(error|help): .", ended.err, re.MULTILINE)) == 2
    assert ended.folder is None
    assert not ended.out


WHERE = "import samebits; print(samebits.init().device)"
BUILD = "The installed torch is a CPU build, which cannot use the 4 GPUs of this machine. The CPU computes. Install another one"


def test_who_leaves_the_choice_to_samebits_is_told_of_gpus_that_stay_idle(tmp_path):
    ended = run_script(tmp_path, WHERE, "-n", "1", env=CPU_BUILD)
    assert (ended.code, ended.out) == (0, "cpu\n")
    assert f"note      {BUILD} (pip install --force-reinstall torch), or start with --device cpu." in " ".join(
        ended.err.split(" ")
    ).replace("\n          ", " ")


@pytest.mark.thorough
def test_a_plain_script_whose_torch_cannot_use_the_gpus_says_so_once(tmp_path):
    hidden = "import torch; torch.cuda.is_available = lambda: False\n"
    ended = start_python(tmp_path, write_script(tmp_path, hidden + WHERE + "; samebits.init()"), env=CPU_BUILD).finish()
    assert (ended.code, ended.out) == (0, "cpu\n")
    assert ended.err.count(BUILD) == 1
    assert 'or say device="cpu"' in ended.err


MIXED = """
    import os
    import torch

    if os.environ["RANK"] == "1":
        torch.cuda.is_available = lambda: False
    import samebits
    samebits.init()
    print("never")
"""


@promise(
    "bad-input-and-what-a-person-is-told",
    "Ranks with and without a GPU end in a sentence each; GPUs of different kinds, and memory that others "
    "use, are named",
    also=["test_gpus_of_different_kinds_and_memory_that_others_use_are_named"],
)
@pytest.mark.thorough
def test_ranks_of_torchrun_with_and_without_a_gpu_end_in_a_sentence_each(tmp_path):
    script = write_script(tmp_path, MIXED)
    ended = start_python(tmp_path, "-m", "torch.distributed.run", "--nproc-per-node=2", script).finish()
    assert ended.code == 1
    assert "never" not in ended.out
    assert "Rank 0 would compute on a GPU, but 1 of 2 ranks have a GPU." in ended.err
    assert "Rank 1 would compute on the CPU, but 1 of 2 ranks have a GPU." in ended.err


UNLIKE = """
    import os
    import torch

    torch.cuda.get_device_name = lambda device=None: "A100" if os.environ["RANK"] == "1" else "H100"
    import samebits
    samebits.init()
"""


@pytest.mark.thorough
def test_gpus_of_different_kinds_and_memory_that_others_use_are_named(tmp_path):
    ended = run_script(tmp_path, UNLIKE, "-n", "2", env={"PRETENDED_GPUS_TAKEN": str(60 << 30)})
    assert ended.code == 0, ended.err
    assert "samebits: the ranks' devices differ, and bits depend on them: H100 on rank 0; A100 on rank 1." in ended.err
    assert "samebits: 60.0 of 80.0 GiB of cuda:0 are taken by another program: `nvidia-smi` names it" in ended.err
