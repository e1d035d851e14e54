"""Tests that are left out with pretended GPUs, or fail there, and why."""

from __future__ import annotations

SPARSE = "a CPU build of torch has no sparse tensors on CUDA"
ON_THE_CPU = (
    "the script keeps its model on the CPU, which DDP refuses on a machine with GPUs, or reads weights as NumPy arrays"
)
COMPILER = "torch.compile refuses tensors of the pretended device"
GROUP_OF_GPUS = "with GPUs its group is NCCL's, whose own methods nobody watches"
HOST_TENSORS = "its script hands the model tensors that it made on the CPU"
SAME_BITS = "test_same_bits.py::test_the_bits_do_not_depend_on_the_number_of_ranks"
STAGED = "test_staged.py::test_a_mistake_with_stages_is_one_sentence"

IMPOSSIBLE = {
    f"{SAME_BITS}[shared_and_odd_buffers": SPARSE,
    f"{SAME_BITS}[sparse_embedding": SPARSE,
    f"{SAME_BITS}[sparse_gradients": SPARSE,
    f"{SAME_BITS}[optimizers_of_sparse_gradients": SPARSE,
    "test_torchrun_scripts.py::test_a_torchrun_script_trains_one_job_over_all_ranks": ON_THE_CPU,
    "test_torchrun_scripts.py::test_two_runs_at_once_do_not_meet": ON_THE_CPU,
    "test_lane_exchanges.py::test_a_call_of_the_group_itself_is_noticed_in_shared_memory": GROUP_OF_GPUS,
    f"{STAGED}[compiled_after_the_cut": COMPILER,
    f"{STAGED}[averages_a_cut_model": HOST_TENSORS,
    f"{STAGED}[calls_other_layers_later": HOST_TENSORS,
    f"{STAGED}[evaluates_on_rank_0": HOST_TENSORS,
}
"""The beginning of a test's name after its folder, and what is missing on the pretended device or in the test."""

BUGS: dict[str, str] = {}
"""What samebits gets wrong on a GPU today; whoever mends one takes its line away."""


def reason_in(exceptions: dict[str, str], test: str) -> str:
    """Why the test with this id is an exception; empty if it is not."""
    name = test.rpartition(".py::")[0].rpartition("/")[2] + ".py::" + test.rpartition(".py::")[2]
    return next((reason for begin, reason in exceptions.items() if name.startswith(begin)), "")
