"""Which of the usual causes are worth a try where two runs of one script differ, and what each try changes.

What helped is named, and only that: a cause that was not tried may be the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samebits.verify.evidence import ItemAtStep, Kind

MOST_TRIES = 3
"""Two runs each: nobody waits for more than six."""


@dataclass(frozen=True)
class Cause:
    """A condition that a person can fix."""

    name: str
    """As in `tried`: "a seed"."""
    advice: str
    """What to write where it helped."""
    fixes: tuple[str, ...] = ()
    """What the witness does before the script's first line behind `import torch`."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment."""


SEED = Cause(
    "one seed",
    "call torch.manual_seed(0), random.seed(0) and numpy.random.seed(0) at the top of the script",
    ("seed",),
)
HASHES = Cause(
    "PYTHONHASHSEED=0",
    "sort what is taken from a set before the order matters, or start with PYTHONHASHSEED=0",
    variables={"PYTHONHASHSEED": "0"},
)
WORKERS = Cause(
    "no loader workers",
    "give the DataLoader a worker_init_fn and a generator: its workers draw random numbers, or share what they count",
    ("workers",),
)
THREADS = Cause(
    "one thread",
    "call torch.set_num_threads(1), or use an operator that adds in a fixed order",
    ("threads",),
    {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
)
DETERMINISTIC = Cause(
    "torch.use_deterministic_algorithms(True)",
    "call torch.use_deterministic_algorithms(True), with CUBLAS_WORKSPACE_CONFIG=:4096:8 on a GPU",
    ("deterministic",),
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
CUDNN = Cause(
    "cuDNN without its benchmark",
    "set torch.backends.cudnn.benchmark = False",
    ("cudnn",),
)


def worth_a_try(first: ItemAtStep, *, has_gpu: bool) -> tuple[Cause, ...]:
    """The likeliest first: by where two runs part. Initial values come from random numbers alone; what parts late, in a
    gradient, from the order of additions.
    """
    kernels = (DETERMINISTIC, CUDNN) if has_gpu else (DETERMINISTIC, THREADS)
    if first.kind is Kind.INITIAL:
        return (SEED, HASHES, WORKERS)
    if first.step == 1:
        return (SEED, WORKERS, HASHES)
    return (SEED, *kernels) if has_gpu else (SEED, WORKERS, THREADS)
