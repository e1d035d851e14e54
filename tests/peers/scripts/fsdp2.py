"""A transformer under `fully_shard`, in the shape of pytorch/examples' distributed/FSDP2; our own.

Made on the meta device, sharded layer by layer, with prefetching, mixed precision, clipping, and checkpoints both as
DTensors and by torch.distributed.checkpoint's state-dict functions.
"""

import copy
import json

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

VOCAB, WIDTH, LENGTH, LAYERS = 64, 32, 16, 3


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def reset(model: nn.Module) -> None:
    """Each full parameter from one generator, then its shard; `to_empty` has left garbage."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            full = torch.randn(parameter.shape, generator=generator) * 0.1
            if parameter.dim() == 1:
                full = torch.full(parameter.shape, float("norm" in name and "weight" in name))
            parameter.copy_(distribute_tensor(full, parameter.device_mesh, parameter.placements))


def sharded(policy: MixedPrecisionPolicy) -> nn.Module:
    with torch.device("meta"):
        model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    assert isinstance(model, FSDPModule)
    assert all(parameter.placements == (Shard(0),) for parameter in model.parameters())
    for now, later in zip(model.layers, model.layers[1:], strict=False):
        now.set_modules_to_forward_prefetch([later])
        later.set_modules_to_backward_prefetch([now])
    model.to_empty(device="cpu")
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    for _ in range(steps):
        model.unshard()
        tokens = torch.randint(0, VOCAB, (8, LENGTH), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def full_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.full_tensor() for name, value in model.state_dict().items() if isinstance(value, DTensor)}


def main() -> None:
    dist.init_process_group("gloo")
    assert dist.get_world_size() == 2
    told = {}
    for name, policy in (
        ("float32", MixedPrecisionPolicy()),
        ("bfloat16", MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)),
    ):
        model = sharded(policy)
        reset(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = train(model, optimizer, 12)
        assert losses[-1] < 0.8 * losses[0]
        saved = full_of(model)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        by_functions = get_model_state_dict(model, options=options)
        state = copy.deepcopy(
            get_optimizer_state_dict(model, optimizer, options=options)
        )  # it has the step itself on CPUs
        assert (set(by_functions) == set(saved)) is (dist.get_rank() == 0)
        again = sharded(policy)
        reset(again)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(again, by_functions, options=options)
        later = torch.optim.Adam(again.parameters(), lr=1e-2)
        set_optimizer_state_dict(again, later, state, options=options)
        assert all(torch.equal(value, saved[key]) for key, value in full_of(again).items())
        assert train(again, later, 2) == train(model, optimizer, 2), "it goes on where it was"
        told[name] = [losses[0], losses[-1]]
    if dist.get_rank() == 0:
        print("peer", json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
