"""The first quarter of an hour on a GPU: tasks in the order of their worth, so that a cut takes the least.

Nothing is installed or compiled beforehand. Tasks run beside each other, as their starts are work of the CPU alone; those that
are timed run alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.gpu_day import integrations
from benchmarks.gpu_day.blocks import DIGITS, TRAINING, Day, bits_of, doctor_says, probe, pytest_of
from benchmarks.gpu_day.judging import ends_with, goes_on
from benchmarks.gpu_day.tasks import COMPILED, PROGRAMS, REAL, ROOT, Task, program, samebits

MIXTURE = str(ROOT / "benchmarks/gpu_day/programs/mixture.py")
ON_THE_GPU = ("run", "--device", "cuda", "-n")
UNDER = ("run", "-q", "--device", "cuda", "-m", f"{PROGRAMS}.probes")
LATE_PROBES = (
    "fused", "capturable", "data_on_the_gpu", "matmul_before_init", "tf32_by_its_new_names", "fast_numerics", "clipped",
    "own_scaler", "averaged_and_saved", "channels_last", "memory_of_prepare",
)  # fmt: skip


def tasks(day: Day) -> list[tuple[str, Task]]:
    """All of them, each with the name of its block."""
    parts = (trains, bits, kernels, nccl, ways_back, states, speed, strategies, compiled, memory, libraries, rest)
    return [(part.__name__.replace("_", " "), task) for part in parts for task in part(day)]


def chosen(todo: Sequence[tuple[str, Task]], words: str) -> list[tuple[str, Task]]:
    """Those whose block or name has one of the words, separated by commas; all without a word."""
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    return [
        (block, task) for block, task in todo if not wanted or any(word in f"{block} {task.name}" for word in wanted)
    ]


def trains(day: Day) -> list[Task]:
    """Does the example train?"""
    digits = ("--epochs", "1" if day.hardware.is_pretended else "12")
    return [
        samebits("digits.py", *ON_THE_GPU, "1", DIGITS, *digits, judge=ends_with(0, "bits "), needs=("sklearn",), takes_s=30),
        Task("python alone", (sys.executable, TRAINING, "--steps", "5"), ends_with(0, "on cuda"), takes_s=15),
        samebits("doctor", "doctor", "--json", judge=doctor_says, takes_s=15),
    ]  # fmt: skip


def bits(day: Day) -> list[Task]:
    """The promise itself, on ranks that share a GPU."""
    steps = 2 if day.hardware.is_pretended else 10
    ranks = "1,2" if day.hardware.is_pretended else "1,2,4"
    return [
        bits_of(f"mixture {precision}", MIXTURE, steps, "--precision", precision, ranks=ranks, takes_s=40)
        for precision in ("32", "bf16-mixed")
    ]


def kernels(day: Day) -> list[Task]:
    """Repeatable twice in a row?"""
    quick = ("--quick",) if day.hardware.is_pretended else ()
    return [
        program("44 operations", "kernels", *quick, limit_s=100.0, takes_s=20),
        program("attention", "attention", *quick, limit_s=60.0, takes_s=15),
    ]


def nccl(_day: Day) -> list[Task]:
    """One rank over NCCL."""
    return [
        samebits("store and end", *UNDER, "nccl_alone", judge=ends_with(0, "sum"), needs=(REAL,), limit_s=60.0, takes_s=15),
        samebits("plain DDP", *UNDER, "ddp_over_nccl", judge=ends_with(0, "loss"), needs=(REAL,), limit_s=60.0, takes_s=15),
    ]  # fmt: skip


def ways_back(day: Day) -> list[Task]:
    """A killed rank."""
    models = ("small",) if day.hardware.is_pretended else ("small", "gpt-124m")
    return [
        *(program(f"killed, {policy}", "killed", policy, shares=True, takes_s=30) for policy in ("replace", "stop")),
        *(program(f"lost, {model}", "lost", model, shares=True, takes_s=30) for model in models),
    ]


def states(_day: Day) -> list[Task]:
    """Save, resume, from the GPU to the CPU."""
    stop = ("verify", TRAINING, "--device", "cuda", "--ranks", "2,1", "--interrupt", "7", "--json")
    return [
        samebits("stopped, other ranks", *stop, judge=goes_on, shares=True, takes_s=40),
        probe("state_of_a_gpu_on_the_cpu", takes_s=15),
    ]


def speed(day: Day) -> list[Task]:
    """A step beside the bare loop's, and its waits."""
    quick = ("--quick",) if day.hardware.is_pretended else ()
    cases = [(model, "1", precision) for precision in ("32", "bf16-mixed") for model in ("mlp", "resnet50", "gpt")]
    cases = [*cases, ("resnet50", "4", "bf16-mixed")]
    return [
        replace(
            program(f"{model}, lanes {lanes}, {precision}", "overhead", model, lanes, precision, *quick, limit_s=70.0),
            is_alone=not day.hardware.is_pretended,
            takes_s=25,
        )
        for model, lanes, precision in (cases[:1] if day.hardware.is_pretended else cases)
    ]


def strategies(day: Day) -> list[Task]:
    """As far as one GPU allows."""
    steps, ranks = (2, "1,2") if day.hardware.is_pretended else (10, "1,2,4")
    several = [
        bits_of(name, TRAINING, steps, "--strategy", name, ranks=ranks, takes_s=35)
        for name in ("model_parallel", "pipeline", "zero1")
    ]
    own = samebits(
        "torch's DataParallel", *UNDER, "data_parallel", judge=ends_with(0, "loss"), needs=(REAL,), takes_s=15
    )
    return [*several, own, probe("dp_on_one_gpu", needs=(REAL,), takes_s=15)]


def compiled(_day: Day) -> list[Task]:
    """torch.compile: the same bits twice, and on two ranks."""
    return [
        program(mode, "compiled", mode, limit_s=150.0, needs=(REAL, "triton"), shares=True, takes_s=60)
        for mode in ("default", "reduce-overhead")
    ]


def memory(_day: Day) -> list[Task]:
    """Out of memory, and an error of a kernel: the user's line must be named."""
    return [
        samebits(
            what.replace("_", " "), *UNDER, what, judge=ends_with(1, said, "probes.py"), needs=(REAL,), limit_s=60.0, takes_s=15
        )
        for what, said in (("out_of_memory", "out of memory"), ("assert_on_the_device", "device-side assert"))
    ]  # fmt: skip


def libraries(day: Day) -> list[Task]:
    """Accelerate and Hugging Face's Trainer."""
    return integrations.tasks(day)


def rest(day: Day) -> list[Task]:
    """While time remains."""
    steps, ranks = (2, "1,2") if day.hardware.is_pretended else (10, "1,2,4")
    with_compiled = replace(
        bits_of("mixture, compiled part", MIXTURE, steps, ranks=ranks, takes_s=30), needs=(COMPILED,)
    )
    if day.hardware.is_pretended:
        return [with_compiled, *(probe(name, takes_s=10) for name in LATE_PROBES[:2])]
    without_form = ends_with(1, "--numerics fast", "deterministic implementation")
    return [
        *(probe(name, takes_s=10) for name in LATE_PROBES),
        with_compiled,
        samebits("loss on pictures", *UNDER, "loss_on_pictures", judge=without_form, takes_s=10),
        bits_of("mixture 16-mixed", MIXTURE, 10, "--precision", "16-mixed", ranks="1,2", takes_s=30),
        replace(pytest_of(day, "tests/cuda"), limit_s=120.0, takes_s=60),
        program("state of 1 GB", "saving", "1", limit_s=100.0, takes_s=30),
        replace(pytest_of(day, "tests/ranks/test_same_bits.py", "-m", "not thorough", shares=True), limit_s=200.0, takes_s=90),
    ]  # fmt: skip
