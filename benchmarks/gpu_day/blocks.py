"""All blocks: what is tried on a machine with GPUs, and in which order. Each has ten minutes and needs none of the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.judging import ends_well, ends_with, goes_on, pytest_says, same_bits, speeds
from benchmarks.gpu_day.outcome import Ended, State, Verdict
from benchmarks.gpu_day.tasks import EXAMPLES, PROGRAMS, REAL, ROOT, SHARE, Task, program, samebits

PYTEST = ("pytest", "hypothesis", "psutil")
DIGITS, GPT = str(EXAMPLES / "digits.py"), str(EXAMPLES / "gpt.py")
TRAINING = str(ROOT / "benchmarks/gpu_day/programs/training.py")
ALONE = (
    "fused", "capturable", "data_on_the_gpu", "matmul_before_init", "tf32_by_its_new_names", "fast_numerics",
    "clipped", "own_scaler", "averaged_and_saved", "channels_last",
    "state_of_a_gpu_on_the_cpu", "memory_of_prepare",
)  # fmt: skip
"""Probes that need nothing but one GPU."""
STRATEGIES = ("ddp", "zero1", "model_parallel", "pipeline")
PRECISIONS = ("32", "bf16-mixed", "16-mixed")


@dataclass(frozen=True)
class Day:
    """What the tasks are made for."""

    hardware: Hardware
    is_quick: bool
    """Small models and few steps: to try the command itself."""

    @property
    def gpus(self) -> int:
        return len(self.hardware.gpus)


@dataclass(frozen=True)
class Block:
    """Tasks that belong together."""

    what: str
    tasks: Callable[[Day], Sequence[Task]]
    least_gpus: int = 1


def doctor_says(ended: Ended) -> Verdict:
    """The rows of `samebits doctor --json` that are not in order."""
    try:
        rows = json.loads(ended.out)["rows"]
    except (ValueError, LookupError):
        return Verdict(State.FAILED, f"exit code {ended.code}: {ended.err.strip()[-200:]}")
    odd = [f"{row['what']}: {row['text']}" for row in rows if row["state"] != "ok"]
    return Verdict(State.FAILED if ended.code else State.OK, "; ".join(odd)[:300] or "all in order", {"rows": rows})


def start(day: Day) -> list[Task]:
    """Does it start at all?"""
    few, well = (TRAINING, "--steps", "5"), ends_with(0, "on cuda")
    on_gpus = ("run", "--device", "cuda", "-n")
    tasks = [
        samebits("doctor", "doctor", "--json", judge=doctor_says),
        samebits("samebits run", *on_gpus, "1", *few, judge=well),
        samebits("all GPUs", *on_gpus, str(min(day.gpus, 4)), *few, judge=well),
        Task("python alone", (sys.executable, *few), well),
        samebits("digits.py", *on_gpus, "1", DIGITS, "--epochs", "1", needs=("sklearn",)),
    ]
    return tasks[:2] if day.is_quick else tasks


def pytest_of(day: Day, *words: str, shares: bool = False) -> Task:
    """Tests of this checkout with ranks on GPUs; warnings of other versions do not count."""
    pretended = day.hardware.is_pretended
    plugin = "tests.pretend.plugin" if pretended else "benchmarks.gpu_day.on_gpus"
    at_once = (
        ("-n", "2" if pretended else "4") if "xdist" in day.hardware.tools and not day.is_quick else ("-p", "no:xdist")
    )
    calm = [
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "-o",
        "filterwarnings=",
        "--tb=short",
        "-rfE",
    ]
    command = (sys.executable, "-m", "pytest", "-p", plugin, *calm, *at_once, *words)
    return Task(words[0], command, pytest_says, 590.0, PYTEST, SHARE if shares else {}, ROOT)


def tests(day: Day) -> list[Task]:
    """What is skipped without a GPU."""
    some = ("-k", "more_ranks_than_gpus or goes_on_with_the_same_bits") if day.is_quick else ()
    return [pytest_of(day, "tests/cuda", *some)]


def scenarios(day: Day) -> list[Task]:
    """The scenarios of the CPU ranks, on GPUs."""
    some = ("-k", "batch_norm_and_dropout-3") if day.is_quick else ("-m", "not thorough")
    return [pytest_of(day, "tests/ranks/test_same_bits.py", *some, shares=True)]


def probe(name: str, **more: object) -> Task:
    """One of `programs/probes.py`."""
    return replace(program(name.replace("_", " "), "probes", name, judge=ends_well, limit_s=60.0), **more)  # type: ignore[arg-type]


def probes(day: Day) -> list[Task]:
    """Mistakes that were predicted, one script each."""
    under = ("run", "-q", "--device", "cuda", "-m", f"{PROGRAMS}.probes")
    both = ("run", "-q", "--device", "cuda", "-n", "2", "-m", f"{PROGRAMS}.probes")
    without_form = ends_with(1, "--numerics fast", "deterministic implementation")
    names = ALONE[:3] if day.is_quick else ALONE
    some = [probe(name) for name in names]
    if day.is_quick:
        return some
    end = samebits("nccl alone, end", *under, "nccl_alone", judge=ends_with(0, "sum"), needs=(REAL,))
    return [
        *some,
        *(replace(end, name=f"{end.name} {number}") for number in (1, 2, 3)),
        probe("sparse_batch", needs=(REAL,)),
        probe("loss_on_pictures_allowed", needs=(REAL,)),
        samebits("loss on pictures", *under, "loss_on_pictures", judge=without_form),
        samebits("adaptive pool", *under, "adaptive_pool", judge=without_form),
        samebits("default device, 2 ranks", *both, "default_device", judge=ends_with(0, "loss"), shares=True),
        samebits("assert on the device", *under, "assert_on_the_device", judge=ends_with(1, "device-side assert", "probes.py"), needs=(REAL,)),
        samebits("out of memory", *under, "out_of_memory", judge=ends_with(1, "out of memory", "probes.py"), needs=(REAL,)),
    ]  # fmt: skip


def bits_of(
    name: str,
    script: str,
    steps: int,
    *words: str,
    ranks: str = "1,2,4",
    needs: Sequence[str] = (),
    takes_s: float = 60.0,
) -> Task:
    """`samebits verify` on ranks that may share a GPU."""
    where = ("--device", "cuda", "--ranks", ranks, "--steps", str(steps))
    command = ("verify", script, *where, *words, "--json")
    return samebits(name, *command, judge=same_bits, limit_s=200.0, needs=needs, shares=True, takes_s=takes_s)


def bits(day: Day) -> list[Task]:
    """The promise itself; ranks share a GPU where there are too few."""
    steps, precisions = (2, PRECISIONS[:1]) if day.is_quick else (20, PRECISIONS)
    ranks = "1,2" if day.is_quick else "1,2,4"
    found = []
    for script in (DIGITS, GPT):
        needs = ("sklearn",) if script == DIGITS else ()
        short = "digits.py" if script == DIGITS else "gpt.py"
        for precision in precisions:
            words = ("--precision", precision) if precision != "32" else ()
            few = steps if script == DIGITS else max(steps // 2, 1)
            few = min(few, 2) if day.hardware.is_pretended else few
            found.append(bits_of(f"{short} {precision}", script, few, *words, ranks=ranks, needs=needs))
    stop = ("verify", TRAINING, "--device", "cuda", "--ranks", "2,1", "--interrupt", "7", "--json")
    goes = samebits("stopped, other ranks", *stop, judge=goes_on, limit_s=200.0, shares=True)
    return found[:1] if day.is_quick else [*found, goes]


def strategies(day: Day) -> list[Task]:
    """Every strategy, on ranks that share a GPU where there are too few."""
    chosen, ranks, steps = (STRATEGIES[1:2], "1,2", 2) if day.is_quick else (STRATEGIES, "1,2,4", 10)
    return [bits_of(name, TRAINING, steps, "--strategy", name, ranks=ranks) for name in chosen]


def speed(day: Day) -> list[Task]:
    """A step beside the bare loop's, and its waits; the most telling cases first."""
    quick = ("--quick",) if day.is_quick or day.hardware.is_pretended else ()
    models = ("mlp",) if day.is_quick else ("mlp", "resnet50", "gpt")
    cases = [(model, lanes, precision) for precision in PRECISIONS for lanes in ("1", "4") for model in models]
    return [
        program(f"{model}, lanes {lanes}, {precision}", "overhead", model, lanes, precision, *quick, limit_s=150.0)
        for model, lanes, precision in (cases[:1] if day.is_quick else cases)
    ]


def bench(day: Day) -> list[Task]:
    """What `samebits bench` says of an example."""
    steps = "3" if day.is_quick or day.hardware.is_pretended else "20"
    words = ("bench", TRAINING if day.is_quick else GPT, "--device", "cuda", "--steps", steps, "--json")
    ranks = ("--ranks", "1" if day.gpus == 1 else "1,2")
    return [samebits("training" if day.is_quick else "gpt.py", *words, *ranks, judge=speeds, limit_s=500.0)]


def saving(day: Day) -> list[Task]:
    """How long a step stands still for a state."""
    quick = ("--quick",) if day.is_quick or day.hardware.is_pretended else ()
    sizes = ("1",) if quick else ("1", "10")
    return [program(f"state of {size} GB", "saving", size, *quick, limit_s=400.0) for size in sizes]


def compiled(_day: Day) -> list[Task]:
    """torch.compile and CUDA graphs: the same bits twice, and on two ranks."""
    needs = {"eager": (), "graphed": (REAL,)}
    return [
        program(mode, "compiled", mode, limit_s=280.0, needs=needs.get(mode, (REAL, "triton")), shares=True)
        for mode in ("eager", "default", "reduce-overhead", "graphed")
    ]


def attention(day: Day) -> list[Task]:
    """Which kernels of attention are deterministic."""
    quick = ("--quick",) if day.is_quick or day.hardware.is_pretended else ()
    return [program("gradients, five times", "attention", *quick, limit_s=200.0)]


def sanitizer(_day: Day) -> list[Task]:
    """A step under compute-sanitizer."""
    words = ("compute-sanitizer", "--tool", "memcheck", sys.executable, TRAINING, "--steps", "3")
    return [Task("memcheck", words, ends_with(0, "ERROR SUMMARY: 0 errors"), 400.0, ("compute-sanitizer",))]


def killed(day: Day) -> list[Task]:
    """`kill -9` in mid-step."""
    policies = ("stop",) if day.is_quick else ("stop", "replace")
    return [program(f"on failure: {policy}", "killed", policy, limit_s=280.0, shares=True) for policy in policies]


def several(day: Day) -> list[Task]:
    """What needs two GPUs or more: NCCL between ranks, and several GPUs of one process."""
    if day.is_quick:
        return [probe("on_two_gpus")]
    all_of = f"1,{min(day.gpus, 4)}"
    strategies = [
        bits_of(f"{name} on GPUs {all_of}", TRAINING, 10, "--strategy", name, ranks=all_of) for name in STRATEGIES
    ]
    apart = [replace(task, variables={}) for task in strategies]
    return [probe("on_two_gpus"), probe("stages_on_all_gpus"), probe("replicas"), *apart]


BLOCKS = {
    "start": Block("doctor, and the first steps on a GPU", start),
    "tests": Block("the tests that need a GPU", tests),
    "probes": Block("mistakes that were predicted, a few lines each", probes),
    "bits": Block("verify on 1, 2, 4 ranks: examples, precisions, a stop", bits),
    "strategies": Block("verify on 1, 2, 4 ranks: every strategy", strategies),
    "speed": Block("a step beside the bare loop's, and its waits (goals G1, G2)", speed),
    "bench": Block("what samebits bench says", bench),
    "saving": Block("how long a step stands still for a state (goal G3)", saving),
    "compile": Block("torch.compile and CUDA graphs", compiled),
    "attention": Block("which kernels of attention are deterministic", attention),
    "scenarios": Block("the scenarios of CPU ranks, on GPUs", scenarios),
    "sanitizer": Block("a few steps under compute-sanitizer", sanitizer),
    "killed": Block("kill -9 of a rank in mid-step", killed),
    "several": Block("several GPUs: NCCL, stages, replicas", several, least_gpus=2),
}
"""In the order in which they run."""
