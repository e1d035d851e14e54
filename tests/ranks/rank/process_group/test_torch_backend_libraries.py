"""What people use on top of torch.distributed, over the backend "samebits": compared with Gloo or with one process."""

from __future__ import annotations

import copy
import gc
import json
import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torchmetrics
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from samebits.testing.ranks import Started, run_ranks
from tests.scripts.torchrun_texts import ACCELERATE, DATA, FABRIC
from tests.support.launching import run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def begin(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    import samebits.torch_backend  # noqa: F401 - registers the name

    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    return rank, size


class Net(nn.Module):
    """Small and large parameters, a buffer, one parameter that is not always used."""

    def __init__(self, sparse, has_unused):
        super().__init__()
        self.words = nn.Embedding(50, 16, sparse=sparse)
        self.wide, self.norm, self.square = nn.Linear(16, 200), nn.BatchNorm1d(200), nn.Linear(200, 200)
        self.last = nn.Linear(200, 4)
        self.unused = nn.Linear(3, 3) if has_unused else None

    def forward(self, words, short):
        hidden = self.norm(self.wide(self.words(words)).relu())
        return self.last(hidden if short else self.square(hidden))


def trained(group, hook, sparse=False, **options):
    """The parameters after four steps, one of which accumulates."""
    torch.manual_seed(0)
    has_unused = options.get("find_unused_parameters", False) or options.get("static_graph", False)
    net = Net(sparse, has_unused)
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=25 if hook else 0.05, **options)
    if hook:
        hook(model, group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        words = torch.randint(0, 50, (8,))
        if step == 2:
            with model.no_sync():
                model(words, False).square().mean().backward()
        model(words, step == 1 and options.get("find_unused_parameters", False)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in net.parameters()]


def waits_inside(model, group):
    """A hook that waits in Python in the middle of the backward pass."""

    def hook(_, bucket):
        future = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        summed = future.wait()[0]
        finished = torch.futures.Future()
        finished.set_result(summed / dist.get_world_size())
        return finished

    model.register_comm_hook(None, hook)


def compresses(model, group):
    model.register_comm_hook(group, default_hooks.fp16_compress_hook)


def approximates(model, group):
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


DDP_OPTIONS = (
    {}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}, {"sparse": True},
    {"hook": compresses}, {"hook": approximates}, {"hook": waits_inside},
)  # fmt: skip


def ddp(folder, chosen):
    begin(folder)
    gloo = dist.new_group(backend="gloo")
    for options in [DDP_OPTIONS[place] for place in chosen]:
        given = {"hook": None} | options
        ours, theirs = trained(dist.group.WORLD, **given), trained(gloo, **given)
        for first, second in zip(ours, theirs, strict=True):
            assert torch.allclose(first, second, atol=1e-6), options


def join_and_zero(folder):
    Path(folder).mkdir(exist_ok=True)
    begin(folder)
    model = DistributedDataParallel(nn.Linear(2, 2))
    for divided in (True, False):  # without, DDP waits for its count of ranks by the C++ half of a work alone
        with Join([model], divide_by_initial_world_size=divided):
            for _ in range(2 + dist.get_rank()):
                model(torch.ones(1, 2)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script, used by torch itself
        from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    optimizer.step()
    optimizer.consolidate_state_dict(0)


@promise(
    "the-backend-samebits-of-torch-distributed",
    "DDP with its options and hooks, functional collectives, DTensor, FSDP2, DCP, torchmetrics, "
    "Accelerate and Fabric work over it",
    also=[
        "test_functional_collectives_dtensor_fsdp2_checkpoints_and_metrics_work",
        "test_accelerate_and_fabric_train_one_job_over_it",
    ],
)
@pytest.mark.parametrize("chosen", [(0, 4, 7), pytest.param((1, 2, 3, 5, 6), marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_ddp_trains_as_over_gloo_with_its_options_and_hooks(tmp_path, chosen):
    run_ranks(ddp, Started(2), str(tmp_path), chosen)
    if len(chosen) > 3:
        run_ranks(join_and_zero, Started(2), str(tmp_path / "more"))


class Fails(torch.autograd.Function):
    """In the backward pass, after the gradients of what comes behind it are under way."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, grad):
        raise ValueError("as asked")


def failing_passes(folder):
    _, size = begin(folder)
    from samebits.rank.process_group import work

    for _ in range(2):
        model = DistributedDataParallel(nn.Linear(4, 4), process_group=dist.new_group())
        with pytest.raises(ValueError, match="as asked"):
            model(Fails.apply(torch.ones(2, 4, requires_grad=True))).sum().backward()
    gc.collect()
    assert not work._promised
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.full((1, 4), float(size))).sum().backward()
    assert model.module.weight.grad.eq(size).all()


@pytest.mark.thorough
def test_a_backward_pass_that_fails_keeps_no_buckets_and_the_next_one_works(tmp_path):
    run_ranks(failing_passes, Started(2), str(tmp_path))


def functional_collectives(folder):
    rank, size = begin(folder)
    group, numbers = dist.group.WORLD, torch.arange(4.0)
    own = numbers + rank
    assert (functional.all_reduce(own, "sum", group) + 0).equal(2 * numbers + 1)
    assert (functional.all_gather_tensor(own, 0, group) + 0).equal(torch.cat([numbers, numbers + 1]))
    part = functional.reduce_scatter_tensor(numbers, "avg", 0, group) + 0
    assert part.equal(numbers.chunk(2)[rank])
    dealt = functional.all_to_all_single(own, [2, 2], [2, 2], group) + 0
    assert dealt.equal(torch.cat([(numbers + source).chunk(2)[rank] for source in range(size)]))
    assert (functional.broadcast(own, 1, group) + 0).equal(numbers + 1)
    most = functional.all_reduce_coalesced([own, own.int()], "max", group)
    assert all(torch.equal(found + 0, (numbers + 1).to(found.dtype)) for found in most)
    wholes = functional.all_gather_into_tensor_coalesced([own, own.int()], group)
    assert [(whole + 0).sum().item() for whole in wholes] == [16, 16]
    parts = functional.reduce_scatter_tensor_coalesced([own, own.int()], "sum", [0, 0], group)
    assert [(part + 0).tolist() for part in parts] == [(2 * numbers + 1).chunk(2)[rank].tolist()] * 2
    leaf = own.clone().requires_grad_()
    functional.all_gather_tensor_autograd(leaf, 0, group).mul(2).sum().backward()
    assert leaf.grad.tolist() == [4.0] * 4


def compiled_collective(folder):
    begin(folder)
    numbers = torch.arange(4.0)
    double = torch.compile(
        lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) * 2, backend="aot_eager", fullgraph=True
    )
    assert double(numbers).equal(4 * numbers)


def compiled_replicas(folder):
    """DDP calls its group while the compiler watches: it makes its buckets anew in the second call."""
    begin(folder)
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    plain = DistributedDataParallel(copy.deepcopy(layer))
    compiled = torch.compile(DistributedDataParallel(layer), backend="eager")
    numbers = torch.rand(8, 4)
    for _ in range(3):
        for model in (plain, compiled):
            model(numbers).sum().backward()
    assert all(map(torch.equal, *([p.grad for p in each.parameters()] for each in (plain, compiled))))


def tensors_and_meshes(folder):
    _, size = begin(folder)
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(16.0).view(4, 4)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert (rows @ rows.t()).full_tensor().equal(whole @ whole.t())
    assert rows.redistribute(mesh, [Shard(1)]).full_tensor().equal(whole)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    expected = model(whole)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    assert torch.allclose(model(whole), expected, atol=1e-5)
    grid = init_device_mesh("cpu", (size, 1), mesh_dim_names=("a", "b"))
    dist.barrier(grid["b"].get_group())


def sharded(folder):
    rank, size = begin(folder)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(7, 7) for _ in range(3)))
    reference = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (model, reference))
    for step in range(3):
        batches = [torch.randn(5, 7, generator=torch.Generator().manual_seed(9 * step + r)) for r in range(size)]
        model(batches[rank]).square().mean().backward()
        torch.stack([reference(batch).square().mean() for batch in batches]).mean().backward()
        for each, optimizer in ((model, ours), (reference, theirs)):
            nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    for found, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(found.full_tensor(), expected, atol=1e-5)
    saved = [parameter.full_tensor().clone() for parameter in model.parameters()]
    weights, state = get_state_dict(model, ours)
    dcp.save({"weights": weights, "state": state}, checkpoint_id=f"{folder}/checkpoint")
    dcp.async_save({"weights": weights}, checkpoint_id=f"{folder}/later").result()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    weights, state = get_state_dict(model, ours)
    dcp.load({"weights": weights, "state": state}, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(model, ours, model_state_dict=weights, optim_state_dict=state)
    assert all(p.full_tensor().equal(expected) for p, expected in zip(model.parameters(), saved, strict=True))
    metric = torchmetrics.CatMetric()
    metric.update(torch.arange(2.0 + rank))
    assert metric.compute().tolist() == [0, 1, 0, 1, 2]


def quietly(scenario, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own
        scenario(folder)
    dist.destroy_process_group()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "scenario",
    [
        functional_collectives,
        tensors_and_meshes,
        sharded,
        compiled_collective,
        compiled_replicas,
    ],
    ids=lambda each: each.__name__,
)
def test_functional_collectives_dtensor_fsdp2_checkpoints_and_metrics_work(tmp_path, scenario):
    run_ranks(quietly, Started(2), scenario, str(tmp_path))


OUR_ACCELERATE = ACCELERATE.replace(
    "accelerator = Accelerator()",
    'dist.init_process_group("samebits")\n    accelerator = Accelerator(cpu=True)\n'
    "    assert accelerator.num_processes == 2",
).replace("accelerator.end_training()", "assert len(accelerator.gather_for_metrics(torch.ones(3))) == 6")
OUR_FABRIC = FABRIC.replace(
    "import Fabric", "import Fabric\n    from lightning_fabric.strategies import DDPStrategy"
).replace("Fabric()", 'Fabric(accelerator="cpu", strategy=DDPStrategy(process_group_backend="samebits"), devices=2)')


@pytest.mark.parametrize(
    "trainer", [OUR_ACCELERATE, pytest.param(OUR_FABRIC, marks=pytest.mark.thorough)], ids=["accelerate", "fabric"]
)
def test_accelerate_and_fabric_train_one_job_over_it(tmp_path: Path, trainer: str) -> None:
    script = "\n    import samebits.torch_backend, torch.distributed as dist" + DATA + trainer
    ended = run_script(tmp_path, script + '\n    assert dist.get_backend() == "samebits"\n', "-n", "2")
    assert ended.code == 0, ended.err
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["world"] for rank in told] == [2, 2]
    assert told[0]["weights"] == told[1]["weights"]
    assert told[0]["first"] != told[1]["first"], "each rank has samples of its own"
