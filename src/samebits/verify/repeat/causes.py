"""Which of the usual causes are worth a try where two runs of one script differ, and what each try changes.

A cause after which two runs part later is kept for the tries behind it: a script may have two. What helped is named, and
only that: a cause that was not tried may be the true one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

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
    ("torch", "random", "numpy"),
)
GENERATORS = Cause(
    "one seed for every generator",
    "give a seed to what has random numbers of its own, as in numpy.random.default_rng(0), random.Random(0) or"
    " env.reset(seed=0), and take none from the clock",
    ("generators",),
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


SEEDS = (SEED.name, GENERATORS.name)
"""No two runs get the same numbers by chance from what these take away."""


@dataclass(frozen=True)
class Conditions:
    """What of the runs says that a cause cannot be one."""

    has_gpu: bool = False
    has_workers: bool = True
    """Whether processes of the script's own, as loaders have them, were there at the first update."""
    threads: int = 2
    seeds: tuple[Cause, ...] = (SEED,)
    """The likeliest first: one that gives a seed to few generators, then all of them."""


CALLS = {"torch": "torch.manual_seed(0)", "random": "random.seed(0)", "numpy": "numpy.random.seed(0)"}


def seeds_of(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Cause, ...]:
    """The cause that only those generators have no seed whose marks differ in two runs, if there are such; then all of them."""
    names = tuple(name for name in CALLS if name in one and name in other and one[name] != other[name])
    if len(names) in (0, len(CALLS)):
        return (SEED,)
    # One that was given a seed late may have been drawn from before: the next one gives it to all.
    advice = f"call {' and '.join(CALLS[name] for name in names)} at the top of the script"
    return replace(SEED, advice=advice, fixes=names), SEED


def next_cause(first: ItemAtStep, tried: Collection[Cause], conditions: Conditions) -> Cause | None:
    """The likeliest one that was not tried, by where two runs part: initial values come from random numbers alone; what parts
    late, in a gradient, from the order of additions.
    """
    kernels = (DETERMINISTIC, CUDNN) if conditions.has_gpu else ()
    threads = (THREADS,) if conditions.threads > 1 and not conditions.has_gpu else ()
    seeds = (*conditions.seeds, GENERATORS)
    workers = (WORKERS,) if conditions.has_workers else ()
    if first.kind is Kind.INITIAL:
        order = (*seeds, HASHES, *workers)
    elif first.step == 1:
        order = (*seeds, *workers, HASHES, *kernels, *threads)
    else:
        order = (*conditions.seeds, *kernels, *threads, *workers, GENERATORS, HASHES)
    return next((one for one in order if one not in tried), None) if len(tried) < MOST_TRIES else None


def names(causes: tuple[Cause, ...]) -> str:
    return " and ".join(dict.fromkeys(cause.name for cause in causes))


def advice(causes: tuple[Cause, ...]) -> str:
    return "; ".join(dict.fromkeys(cause.advice for cause in causes))
