"""How the ranks are arranged: replicas of the model, each cut into stages.

A mesh names its axes from the outside in, as torch's `init_device_mesh` does: those of the last one are neighbouring ranks,
and so on one node.

pipeline=2,ddp=2    rank = stage * replicas + replica: stages over nodes, the replicas of a stage inside. The default: what
                    crosses nodes is what a layer hands to the next one, and gradients stay in a node's memory.
ddp=2,pipeline=2    rank = replica * stages + stage: replicas over nodes, the stages of each inside. What crosses is each
                    gradient once: less where layers hand over more than they have parameters.

Lanes are placed on replicas; the ranks of a replica carry the same lanes, each for its own layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from samebits.errors import UsageError

MOST_LANES = 1 << 16
"""More than any batch has samples for, and each lane costs a pass: what a slip of the hand names is refused."""
AUTO = "auto"
"""The name of the default: whichever of the strategies with the same bits is the quickest."""

ALIASES = {
    AUTO: AUTO,
    "single": "single",
    "ddp": "ddp",
    "distributed_data_parallel": "ddp",
    "distributeddataparallel": "ddp",
    "zero1": "zero1",
    "zero_1": "zero1",
    "zero": "zero1",
    "model_parallel": "model_parallel",
    "mp": "model_parallel",
    "pipeline": "pipeline",
    "pipeline_parallel": "pipeline",
    "pp": "pipeline",
    "dp": "dp",
    "data_parallel": "dp",
    "dataparallel": "dp",
    "hogwild": "hogwild",
    "async": "hogwild",
}
"""Every accepted spelling (lower case, - as _) and the strategy that it names."""

STRATEGIES = tuple(dict.fromkeys(ALIASES.values()))
STAGED = ("model_parallel", "pipeline")
"""The strategies that cut a model into stages."""
DATA_PARALLEL = ("single", "ddp", "zero1")
"""Those under which each rank computes lanes alone, so that a run has the same bits on any number of ranks."""
LEAST_LANES = 4
"""So many lanes a data-parallel run has by default: 1 to 4 ranks have the same bits."""

SCHEDULES = ("1f1b", "gpipe")


@dataclass(frozen=True)
class Form:
    """What the user asked for in laying the model on ranks; None where nothing was asked for."""

    strategy: str | None = None
    mesh: str | None = None
    """Such as "pipeline=2,ddp=2", from the outside in."""
    schedule: str | None = None
    """The pipeline's."""

    def over(self, weaker: Form) -> Form:
        """Complete this form from a weaker one: the command line over the script. A strategy brings its own mesh."""
        if self.strategy or self.mesh:
            return Form(self.strategy, self.mesh, self.schedule or weaker.schedule)
        return Form(weaker.strategy, weaker.mesh, self.schedule or weaker.schedule)


@dataclass(frozen=True)
class Mesh:
    """The arrangement. Invariant: `replicas * stages` is the number of ranks."""

    strategy: str
    replicas: int
    stages: int = 1
    schedule: str = "1f1b"
    stages_inside: bool = False
    """Whether the stages of a replica are neighbouring ranks; otherwise the replicas of a stage are."""
    copies: int = 0
    """Under `dp`: replicas inside the single rank; 0: one for each CUDA device, or one on the CPU."""
    is_named: bool = field(default=False, compare=False)
    """Whether somebody named its sizes, so that it fits one number of ranks only."""

    @property
    def num_ranks(self) -> int:
        return self.replicas * self.stages

    @property
    def asynchronous(self) -> bool:
        """Whether ranks go through an epoch without waiting for each other, each with its own losses and optimizer."""
        return self.strategy == "hogwild"

    def replica(self, rank: int) -> int:
        """Which replica of the model `rank` belongs to; it carries that replica's lanes."""
        return rank // self.stages if self.stages_inside else rank % self.replicas

    def stage(self, rank: int) -> int:
        """Which stage of its replica `rank` holds."""
        return rank % self.stages if self.stages_inside else rank // self.replicas

    def rank(self, replica: int, stage: int) -> int:
        """The rank that holds a stage of a replica."""
        return replica * self.stages + stage if self.stages_inside else stage * self.replicas + replica

    def peers(self, stage: int) -> tuple[int, ...]:
        """The ranks that hold `stage`, one per replica: they reduce its gradients."""
        return tuple(self.rank(replica, stage) for replica in range(self.replicas))

    def members(self, replica: int) -> tuple[int, ...]:
        """The ranks of a replica, in the order of their stages."""
        return tuple(self.rank(replica, stage) for stage in range(self.stages))

    def part_of(self) -> tuple[int, ...]:
        """For each rank, which part of the model it holds; those with the same part must hold the same bits."""
        return tuple(map(self.stage, range(self.num_ranks)))

    def default_lanes(self) -> int:
        """The number of lanes by default: one for each replica, and at least four where each rank computes lanes alone; four
        micro-batches for each stage of a pipeline. Stages, `dp` and `hogwild` need no more to use all their ranks.
        """
        if self.strategy in DATA_PARALLEL:
            return max(LEAST_LANES, self.replicas)
        return self.replicas * (4 * self.stages if self.strategy == "pipeline" and self.stages > 1 else 1)

    def default_threads(self, cores: int, num_lanes: int, ranks_here: int) -> int:
        """The threads per rank by default, on a node with `cores` and `ranks_here`: its cores are shared by its lanes, so that
        fewer ranks, with more lanes each, have the same bits. Where lanes do not move between ranks, the ranks share them.
        """
        lanes_here = -(-num_lanes * ranks_here // self.num_ranks)
        return max(1, cores // (lanes_here if self.strategy in DATA_PARALLEL else ranks_here))

    def check_lanes(self, num_lanes: int) -> None:
        """Raise `UsageError` when a pipeline would have fewer micro-batches than stages."""
        needed = self.replicas * self.stages
        if self.strategy == "pipeline" and self.stages > 1 and num_lanes < needed:
            raise UsageError(
                f"A pipeline of {self.stages} stages needs at least as many lanes (micro-batches) as stages in each "
                f"replica, but there are {num_lanes} lanes for {self.replicas} replica{'s' * (self.replicas > 1)}.",
                f"Set --lanes {4 * needed} (four per stage keep it busy), or use --strategy model_parallel.",
            )

    def check_device(self, kind: str) -> None:
        """Raise `UsageError` when the strategy cannot work on "cpu" or "cuda"."""
        if self.strategy == "hogwild" and self.num_ranks > 1 and kind == "cuda":
            raise UsageError(
                "hogwild shares the parameters in CPU memory, which ranks on GPUs do not have in common.",
                "Start with --device cpu, or use --strategy ddp.",
            )

    def check_nodes(self, ranks_here: int) -> None:
        """Raise `UsageError` when the strategy cannot work with so many of the ranks on this node."""
        if self.strategy == "hogwild" and ranks_here < self.num_ranks:
            raise UsageError(
                "hogwild shares the parameters in the memory of one node, but the ranks are on several.",
                "Start it on one node, or use --strategy ddp.",
            )

    def __str__(self) -> str:
        if self.copies:
            return f"{self.strategy}, {self.copies} replica{'s' * (self.copies > 1)}"
        if self.stages == 1:
            return self.strategy
        axes = [f"{self.stages} stages"] + [f"{self.replicas} replicas"] * (self.replicas > 1)
        schedule = f", {self.schedule}" if self.strategy == "pipeline" else ""
        return f"{self.strategy}, {' x '.join(reversed(axes) if self.stages_inside else axes)}{schedule}"


def strategy_named(name: str) -> str:
    """Return the strategy that a spelling names.

    Raises:
        UsageError: for an unknown name.
    """
    found = ALIASES.get(name.lower().replace("-", "_"))
    if found is None:
        raise UsageError(f"There is no strategy {name!r}.", f"Use one of {', '.join(STRATEGIES)}.")
    return found


def choose_mesh(form: Form, world_size: int) -> Mesh:
    """Arrange `world_size` ranks; by default `single` for one rank, else `ddp`, open to what is quicker.

    Raises:
        UsageError: when names are unknown, or strategy, mesh and number of ranks contradict each other.
    """
    return replace(_chosen(form, world_size), is_named=bool(form.mesh))


def _chosen(form: Form, world_size: int) -> Mesh:
    if form.schedule not in (None, *SCHEDULES):
        raise UsageError(f"There is no schedule {form.schedule!r}.", f"Use one of {', '.join(SCHEDULES)}.")
    schedule = form.schedule or SCHEDULES[0]
    sizes = _parse(form.mesh) if form.mesh else {}
    named = [name for name in sizes if name != "ddp"]
    strategy = strategy_named(form.strategy) if form.strategy else None
    if strategy and named and strategy != named[0]:
        raise UsageError(f"strategy {strategy} and mesh {form.mesh} do not fit together.", "Leave one of them out.")
    strategy = strategy or (named[0] if named else "ddp" if sizes else None)
    if strategy is None and form.schedule and world_size > 1:
        raise UsageError(
            f"schedule={form.schedule} belongs to the strategy `pipeline`.", "Name it: --strategy pipeline."
        )
    if strategy is None or (strategy == AUTO and not sizes and not form.schedule):
        return Mesh("single" if world_size == 1 else "ddp", world_size)
    if form.schedule and strategy != "pipeline":
        raise UsageError(
            f"schedule={form.schedule} belongs to the strategy `pipeline`, but the strategy is {strategy}.",
            "Leave schedule out, or use --strategy pipeline.",
        )
    if strategy == "single" and world_size > 1:
        raise UsageError(
            f"The strategy `single` is for one rank, but there are {world_size}.", "Start with -n 1, or use ddp."
        )
    if strategy == "dp":
        return _data_parallel(sizes, form.mesh, world_size)
    if strategy not in STAGED:
        if sizes and (named or strategy == AUTO or sizes.get("ddp") != world_size):
            raise UsageError(
                f"mesh {form.mesh} does not fit strategy {strategy} on {world_size} ranks.", "Leave it out."
            )
        return Mesh(strategy if world_size > 1 or strategy == "hogwild" else "single", world_size)
    return _staged(strategy, sizes, world_size, schedule)


def check_over_nodes(form: Form) -> None:
    """Raise `UsageError` for a strategy whose ranks or replicas must share one node's memory; and for unknown names."""
    sizes = _parse(form.mesh) if form.mesh else {}
    strategy = strategy_named(form.strategy) if form.strategy else None
    if strategy == "hogwild":
        raise UsageError(
            "hogwild shares the parameters in the memory of one node, and there are several.",
            "Start it on one node, or use --strategy ddp.",
        )
    if strategy == "dp" or "dp" in sizes:
        raise UsageError(
            "dp is one process with several replicas, and there are several nodes.",
            "Start it on one node, or use --strategy ddp.",
        )


def launched(form: Form, count: int) -> tuple[int, Form]:
    """Return how many ranks `-n count` starts, and their form: `dp` is one rank with `count` replicas.

    Raises:
        UsageError: when the mesh names another number of replicas.
    """
    sizes = _parse(form.mesh) if form.mesh else {}
    if not is_data_parallel(form):
        return count, form
    if sizes.get("dp", count) != count:
        raise UsageError(
            f"Under dp, -n counts the replicas, so -n {count} and mesh {form.mesh} contradict each other.",
            "Leave one of them out.",
        )
    return 1, Form("dp", form.mesh or f"dp={count}", form.schedule)


def check_shrinks(form: Form) -> None:
    """Raise `UsageError` where the ranks cannot become fewer: their number is part of the mesh, or there is one only.

    Args:
        form: what command line and script have named.
    """
    if is_data_parallel(form):
        raise UsageError("--shrink needs ranks, but dp is one rank with several replicas.", "Leave --shrink out.")
    if form.mesh:
        raise UsageError(
            f"--shrink cannot take a rank out of mesh {form.mesh}.",
            "Leave the mesh out, so that every number of ranks fits, or leave --shrink out.",
        )


def shrinks(form: Form) -> bool:
    """Whether the ranks can become fewer, as far as `form` says."""
    return not form.mesh and not is_data_parallel(form)


def on_ranks(form: Form, count: int) -> Form:
    """The form for a comparison over several numbers of ranks: on one rank, a model that is not cut is `single`."""
    in_one_piece = form.strategy and strategy_named(form.strategy) in ("dp", "hogwild")
    return form if count > 1 or in_one_piece or is_data_parallel(form) else Form()


def is_data_parallel(form: Form) -> bool:
    """Whether the form names `dp`, by its strategy or by its mesh."""
    if form.strategy:
        return strategy_named(form.strategy) == "dp"
    return bool(form.mesh) and "dp" in _parse(form.mesh or "")


def _data_parallel(sizes: Mapping[str, int], mesh: str | None, world_size: int) -> Mesh:
    if world_size > 1:
        raise UsageError(
            f"The strategy `dp` is one process with one replica per device, but there are {world_size} ranks.",
            f"Start with `samebits run -n {world_size} --strategy dp` (one rank, {world_size} replicas), or use ddp.",
        )
    if sizes.keys() - {"dp"}:
        raise UsageError(f"mesh {mesh} does not fit strategy dp, which has one rank.", "Write dp=2 for two replicas.")
    return Mesh("dp", 1, copies=sizes.get("dp", 0))


def _staged(strategy: str, sizes: Mapping[str, int], world_size: int, schedule: str) -> Mesh:
    replicas = sizes.get("ddp", 1)
    stages = sizes.get(strategy, world_size // replicas if world_size % replicas == 0 else 0)
    if replicas * stages != world_size:
        raise UsageError(
            f"mesh {strategy}={stages or '?'},ddp={replicas} needs "
            f"{replicas * stages or 'a multiple of ' + str(replicas)} ranks, but there are {world_size}.",
            f"Start with -n {replicas * stages or replicas}, or change the mesh.",
        )
    if stages == 1 < world_size and strategy not in sizes:
        raise UsageError(
            f"mesh ddp={replicas} leaves one stage on {world_size} ranks, so {strategy} has nothing to cut.",
            f"Write {strategy}=2,ddp={replicas} and start with -n {2 * replicas}, or use --strategy ddp.",
        )
    return Mesh(strategy, replicas, stages, schedule, stages_inside=[*sizes] == ["ddp", strategy])


def _parse(text: str) -> dict[str, int]:
    """Parse "pipeline=2,ddp=2" into {"pipeline": 2, "ddp": 2}, in this order."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if not equals or not number.strip().isdigit() or int(number) < 1:
            raise UsageError(f"mesh {text!r} cannot be read.", "Write names and sizes, such as model_parallel=2,ddp=2.")
        known = strategy_named(name.strip())
        if known not in ("ddp", "dp", *STAGED) or known in sizes:
            raise UsageError(
                f"mesh {text!r} is not valid: a mesh has ddp and one of {', '.join(STAGED)}, each once.",
                "Write model_parallel=2,ddp=2.",
            )
        sizes[known] = int(number)
    if len(sizes.keys() - {"ddp"}) > 1:
        raise UsageError(
            f"mesh {text!r} is not valid: a mesh has ddp and one of {', '.join(STAGED)}, each once.",
            "Write model_parallel=2,ddp=2.",
        )
    return sizes
