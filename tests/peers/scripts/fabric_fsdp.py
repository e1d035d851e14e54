"""Lightning's Fabric with `fully_shard`; its older FSDPStrategy is for GPUs only."""

import json
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def sharded(model: nn.Module, mesh: object) -> nn.Module:
    for layer in model.children():
        fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def main() -> None:
    strategy = ModelParallelStrategy(parallelize_fn=sharded, data_parallel_size=2, tensor_parallel_size=1)
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    model = fabric.setup_module(Net())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    inputs = torch.randn(128, 8)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 16))
    losses = []
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
    assert losses[-1] < losses[0]
    fabric.save("state.ckpt", {"model": model, "optimizer": optimizer})
    model(inputs[:16]).sum().backward()
    optimizer.step()  # away from what was saved
    fabric.load("state.ckpt", {"model": model, "optimizer": optimizer})
    assert dist.get_world_size() == 2
    if fabric.is_global_zero:
        print("peer", json.dumps({"losses": losses}))


if __name__ == "__main__":
    main()
