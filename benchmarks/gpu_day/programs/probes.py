"""What a script may do with a GPU, a few lines each: `python -m benchmarks.gpu_day.programs.probes NAME`.

`tests/cuda` has others; these are those that predicted mistakes on GPUs, or that only a real one can answer. A probe that
returns a sentence is fine; one that raises is not.
"""

import copy
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import samebits

BATCH = 8


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def samples(number=32):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(number, 16, generator=generator, device="cpu")
    return inputs, torch.randint(0, 4, (number,), generator=generator, device="cpu")


def trained(run, model, optimizer, data, loss_of=None, **how):
    """An epoch; the loss of its last step."""
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, BATCH, **how))
    for step in run.steps(loader):
        for batch in step:
            run.backward(loss_of(model, *batch) if loss_of else F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return f"loss {float(step.loss):.6f}"


def plain(**settings):
    run, model = samebits.init(lanes=2, threads=1), layers()
    return trained(run, model, torch.optim.AdamW(model.parameters(), **settings), TensorDataset(*samples()))


def fused():
    return plain(fused=True)


def capturable():
    return plain(capturable=True)


def data_on_the_gpu():
    """A small data set that lies on the GPU."""
    run, model = samebits.init(lanes=2, threads=1), layers()
    data = TensorDataset(*(tensor.cuda() for tensor in samples()))
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), data)


def default_device():
    torch.set_default_device("cuda")
    run = samebits.init(lanes=2, threads=1)
    model = layers()
    loader_settings = {"generator": torch.Generator("cpu")}
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), TensorDataset(*samples()), **loader_settings)


def matmul_before_init():
    ones = torch.ones(2, 2, device="cuda")
    (ones @ ones).sum().item()
    return plain()


def tf32_by_its_new_names():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    return plain()


def fast_numerics():
    run, model = samebits.init(lanes=2, threads=1, numerics="fast"), layers()
    return trained(run, model, torch.optim.AdamW(model.parameters()), TensorDataset(*samples()))


def loss_on_pictures():
    """It has no deterministic form: the launcher must name the option, or what to write instead."""
    run, model = samebits.init(lanes=2, threads=1), nn.Conv2d(1, 4, 3)
    data = TensorDataset(torch.randn(16, 1, 6, 6), torch.randint(0, 4, (16, 4, 4)))
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), data)


def loss_on_pictures_allowed():
    run, model = samebits.init(lanes=2, threads=1, allow=["nll_loss2d"]), nn.Conv2d(1, 4, 3)
    data = TensorDataset(torch.randn(16, 1, 6, 6), torch.randint(0, 4, (16, 4, 4)))
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), data)


def adaptive_pool():
    """The same in the backward pass."""
    run = samebits.init(lanes=2, threads=1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 4))
    data = TensorDataset(torch.randn(16, 1, 10, 10), torch.randint(0, 4, (16,)))
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), data)


def sparse_batch():
    run, model = samebits.init(lanes=2, threads=1), layers()

    def collate(rows):
        return torch.stack([row[0] for row in rows]).to_sparse(), torch.stack([row[1] for row in rows])

    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = lambda model, x, y: F.cross_entropy(model(x.to_dense()), y)  # noqa: E731
    return trained(run, model, optimizer, TensorDataset(*samples()), loss_of, collate_fn=collate)


def clipped():
    run, model = samebits.init(lanes=2, threads=1), layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(*samples()), BATCH))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        stock = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
        ours = run.clip_grad_norm_(model.parameters(), 0.1)
        torch.testing.assert_close(torch.as_tensor(ours), stock.cpu().to(torch.as_tensor(ours)))
        optimizer.step()
        optimizer.zero_grad()
    return f"norm {float(ours):.6f}"


def own_scaler():
    run, model = samebits.init(lanes=2, threads=1), layers()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(*samples()), BATCH))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(scaler.scale(F.cross_entropy(model(inputs), labels)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return f"scale {scaler.get_scale():.0f}"


def averaged_and_saved():
    run, model = samebits.init(lanes=2, threads=1), layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(TensorDataset(*samples()), BATCH))
    average, before = AveragedModel(model), copy.deepcopy(model)
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    assert not torch.equal(next(before.parameters()), next(model.parameters()))
    torch.save(average.state_dict(), "average.pt")
    return f"{len(torch.load('average.pt'))} tensors read again"


def channels_last():
    """A convolution in the other memory format, twice: is it repeatable?"""

    def once():
        run = samebits.init(seed=0, lanes=2, threads=1)
        model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(576, 4))
        model = model.to(memory_format=torch.channels_last)
        data = TensorDataset(torch.randn(32, 8, 8, 8), torch.randint(0, 4, (32,)))
        loss_of = lambda model, x, y: F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)  # noqa: E731
        trained(run, model, torch.optim.AdamW(model.parameters()), data, loss_of)
        return [each.detach().cpu().clone() for each in model.parameters()]

    first, second = once(), once()
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True)), "two runs differ"
    return "repeatable"


def state_of_a_gpu_on_the_cpu():
    run, model = samebits.init(lanes=2, threads=1), layers()
    optimizer = torch.optim.AdamW(model.parameters())
    trained(run, model, optimizer, TensorDataset(*samples()))
    run.save_state("state")
    saved = [each.detach().cpu().clone() for each in model.parameters()]
    run, other = samebits.init(lanes=2, threads=1, device="cpu"), layers()
    optimizer, loader = torch.optim.AdamW(other.parameters()), DataLoader(TensorDataset(*samples()), BATCH)
    other, *_ = run.prepare(other, optimizer, loader)
    run.load_state("state")
    assert all(torch.equal(*pair) for pair in zip(saved, other.parameters(), strict=True))
    return "read with the same bits"


def memory_of_prepare():
    """The most memory while a model is prepared, in parameters; the goal is 1.0 and what gradients take."""
    run = samebits.init(lanes=1, threads=1)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))
    size = sum(each.nbytes for each in model.parameters())
    torch.cuda.reset_peak_memory_stats()
    run.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    now, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    return f"{peak / size:.2f} x parameters at most, {now / size:.2f} x after it"


def assert_on_the_device():
    """A label that does not exist: the launcher must show CUDA's error, and this line."""
    run, model = samebits.init(lanes=2, threads=1), layers()
    inputs, labels = samples()
    labels[5] = 99
    return trained(run, model, torch.optim.AdamW(model.parameters()), TensorDataset(inputs, labels))


def out_of_memory():
    """More than there is: the launcher must show torch's error, and this line."""
    run = samebits.init(lanes=2, threads=1)
    return torch.empty(2 * torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device=run.device).shape


def nccl_alone():
    """NCCL over the run's store, whose threads are still there when the interpreter ends."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    ones = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(ones)
    time.sleep(2.5)  # its heartbeat asks the store every second
    return f"sum {ones.sum().item():.0f}"


def trained_plainly(model):
    """A few steps of a script without samebits; the loss of the last one."""
    optimizer, (inputs, labels) = torch.optim.AdamW(model.parameters()), samples()
    for _ in range(5):
        loss = F.cross_entropy(model(inputs.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return f"loss {loss.item():.6f}"


def ddp_over_nccl():
    """A plain script of torch's DDP, with NCCL, as torchrun users have it."""
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    told = trained_plainly(nn.parallel.DistributedDataParallel(layers().cuda()))
    dist.destroy_process_group()
    return told


def data_parallel():
    """torch's own DataParallel, on every GPU that is here, in a plain script."""
    return trained_plainly(nn.DataParallel(layers().cuda()))


def dp_on_one_gpu():
    run, model = samebits.init(lanes=1, threads=1, strategy="dp", mesh="dp=1"), layers()
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), TensorDataset(*samples()))


def on_two_gpus():
    """A model that its author has put on two GPUs."""

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 32).to("cuda:0"), nn.Linear(32, 4).to("cuda:1")

        def forward(self, inputs):
            return self.second(self.first(inputs).to("cuda:1")).to("cuda:0")

    run, model = samebits.init(lanes=2, threads=1), Apart()
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), TensorDataset(*samples()))


def stages_on_all_gpus():
    """`model_parallel` on one rank, which takes all GPUs."""
    run, model = samebits.init(lanes=2, threads=1, strategy="model_parallel"), layers()
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), TensorDataset(*samples()))


def replicas():
    """`dp` over two GPUs."""
    run, model = samebits.init(lanes=1, threads=1, strategy="dp", mesh="dp=2"), layers()
    return trained(run, model, torch.optim.SGD(model.parameters(), 0.1), TensorDataset(*samples()))


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
