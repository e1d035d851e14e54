"""Tests that are left out with pretended GPUs, or fail there, and why."""

from __future__ import annotations

SPARSE = "a CPU build of torch has no sparse tensors on CUDA"
ON_THE_CPU = (
    "the script keeps its model on the CPU, which DDP refuses on a machine with GPUs, or reads weights as NumPy arrays"
)
SAME_BITS = "test_same_bits.py::test_the_bits_do_not_depend_on_the_number_of_ranks"
STAGES = "test_scenarios_in_stages.py::test_a_scenario_in_stages_has_the_bits_of_one_rank_or_is_refused"
ZERO1 = "test_zero1.py::test_a_script_has_the_bits_of_one_rank"
EARLY_STATE = "state that an optimizer has before `prepare` stays on the CPU"

IMPOSSIBLE = {
    f"{SAME_BITS}[shared_and_odd_buffers": SPARSE,
    f"{SAME_BITS}[sparse_embedding": SPARSE,
    f"{STAGES}[shared_and_odd_buffers": SPARSE,
    f"{STAGES}[sparse_embedding": SPARSE,
    "test_torchrun_scripts.py::test_a_torchrun_script_trains_one_job_over_all_ranks": ON_THE_CPU,
}
"""The beginning of a test's name after its folder, and what is missing on the pretended device or in the test."""

BUGS = {
    f"{ZERO1}[two_optimizers_of_one_model": EARLY_STATE,
    f"{ZERO1}[every_optimizer": EARLY_STATE,
    "test_zero1.py::test_ranks_that_share_no_memory_hand_the_parameters_around[two_optimizers": EARLY_STATE,
    "test_zero1.py::test_a_mistake_is_one_sentence_on_every_rank[random_numbers_in_the_step": (
        "a step that draws from a device's generator is not noticed"
    ),
    "test_evaluation.py::test_what_was_put_together_is_not_said[all_reduce": (
        "beside NCCL, exchanges of tensors of the CPU are not counted"
    ),
}
"""What lockstep gets wrong on a GPU today; whoever mends one takes its line away."""


def reason_in(exceptions: dict[str, str], test: str) -> str:
    """Why the test with this id is an exception; empty if it is not."""
    name = test.rpartition(".py::")[0].rpartition("/")[2] + ".py::" + test.rpartition(".py::")[2]
    return next((reason for begin, reason in exceptions.items() if name.startswith(begin)), "")
