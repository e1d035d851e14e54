"""Models and loops that are cut into stages; run on every rank."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.rank.strategy.agreement import tensor_hash


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x))))) * mask


class Tokens(nn.Module):
    """A residual network over tokens: embeddings, a list of blocks, a mask that every block needs."""

    def __init__(self, num_blocks=4, size=16):
        super().__init__()
        self.tokens = nn.Embedding(11, size)
        self.positions = nn.Parameter(torch.randn(6, size))
        self.blocks = nn.ModuleList(Block(size) for _ in range(num_blocks))
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, 3)

    def forward(self, tokens):
        mask = (tokens != 0).unsqueeze(-1).float()
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x).mean(1))


class Attention(nn.Module):
    """A block as nanoGPT has it: attention, then a feed-forward network, each on top of what comes in."""

    def __init__(self, size):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.dropout = 0.1

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 2, size // 2).permute(2, 0, 3, 1, 4)
        rate = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x = x + F.dropout(self.out(attended.transpose(1, 2).flatten(2)), rate)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), rate)


class NanoGpt(nn.Module):
    """Tied weights: the head is the embedding. The loss is computed inside, and comes with the scores."""

    def __init__(self, num_blocks=3, size=16):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, size), nn.Embedding(6, size)
        self.blocks, self.norm = nn.ModuleList(Attention(size) for _ in range(num_blocks)), nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, 11, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets=None):
        x = F.dropout(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])), 0.1, self.training)
        for block in self.blocks:
            x = block(x)
        scores = self.lm_head(self.norm(x))
        return scores, None if targets is None else F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def following_data():
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(0, 11, (44, 7), generator=generator)
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def convolutions():
    def part(inputs, outputs, stride):
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

    parts = (part(1, 4, 1), part(4, 8, 2), nn.Dropout(0.2), part(8, 8, 2))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def tokens_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(0, 11, (44, 6), generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (44,), generator=generator))


def images_data():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(44, 1, 8, 8, generator=generator), torch.randint(0, 3, (44,), generator=generator))


def classes(model, inputs, labels):
    return F.cross_entropy(model(inputs), labels)


def own_loss(model, inputs, labels):
    return model(inputs, labels)[1]


MODELS = {
    "tokens": (Tokens, tokens_data, classes),
    "images": (convolutions, images_data, classes),
    "tied": (NanoGpt, following_data, own_loss),
}


def held(model, optimizer):
    """The hash of every tensor that this rank has."""
    found = {name: tensor_hash(t) for name, t in model.named_parameters() if not t.is_meta}
    found |= {
        f"state {name} {key}": tensor_hash(value)
        for name, p in model.named_parameters()
        if not p.is_meta
        for key, value in optimizer.state[p].items()
        if isinstance(value, torch.Tensor)
    }
    return found | {name: tensor_hash(t) for name, t in model.named_buffers() if run_holds(t)}


def run_holds(buffer):
    from samebits.rank.run import start

    strategy = start._present[0].components.strategy
    holder = strategy.holder_of(buffer)
    rank, mesh = start._present[0].components.transport.rank, start._present[0].config.mesh
    return holder is None or mesh.stage(holder) == mesh.stage(rank)


def train(which, in_one_call=True, clip=True, epochs=2, folder=None):
    """`folder`: where the state goes; all ranks see it."""
    run = samebits.init(seed=3, lanes=4, threads=1)
    build, data, loss_of = MODELS[which]
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data(), batch_size=16, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    losses, norms = [], []
    for _ in run.epochs(epochs):
        model.train()
        for step in run.steps(loader):
            if in_one_call:
                step.backward(lambda batch: loss_of(model, *batch))
            else:
                for batch in step:
                    run.backward(loss_of(model, *batch))
            if clip:
                norms.append(run.clip_grad_norm_(model.parameters(), 0.5).hex())
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss.hex())
        model.eval()
        tally = run.tally()
        with torch.no_grad():
            for batch in loader:
                tally.add(loss=loss_of(model, *batch))
        losses.append(float(tally.mean()["loss"]).hex())
        if folder is not None:
            run.save_state(folder)
    present = [name for name, p in model.named_parameters() if not p.is_meta]
    return {"losses": losses, "norms": norms, "held": held(model, optimizer), "present": present}
