"""Models and loops that stages once got wrong; each is trained, evaluated, and hashed on every rank."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import samebits
from samebits.rank.run import start
from samebits.rank.strategy.stages.results import tensors_of
from tests.scripts.staged_models import held, images_data, tokens_data


def classes(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def fit(
    model,
    data=images_data,
    *,
    loss_of=classes,
    cut=(),
    lane=None,
    evaluates_with_gradients=False,
    before=lambda _: None,
    **init,
):
    """Two epochs, each with an evaluation; `lane(run, model, batch)` instead of the plain step."""
    run = samebits.init(seed=3, lanes=4, threads=1, **init)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data(), batch_size=16, shuffle=True)
    cut = cut if start._present[0].config.mesh.stages > 1 else ()
    model, optimizer, loader = run.prepare(model, optimizer, loader, cut=cut)
    losses = []
    for epoch in run.epochs(2):
        model.train()
        before(epoch)
        for step in run.steps(loader):
            if lane is None:
                step.backward(lambda batch: loss_of(model, batch))
            else:
                for batch in step:
                    lane(run, model, batch)
            losses += [run.clip_grad_norm_(model.parameters(), 0.5).hex()]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss.hex())
        model.eval()
        tally = run.tally()
        with torch.set_grad_enabled(evaluates_with_gradients):
            for inputs, _ in loader:
                result = model(inputs)
                tally.add(size=tensors_of(result)[0].detach().float().abs().mean())
        losses.append(float(tally.mean()["size"]).hex())
    return {"losses": losses, "held": held(model, optimizer)}


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 3))


class Checkpointed(nn.Module):
    """The cut is where a checkpointed part begins; it has dropout, so it must be recomputed with the same numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))

    def forward(self, x):
        x = F.dropout(self.first(x.flatten(1)), 0.1, self.training)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.last(x)


class UnreducedMetrics(nn.Module):
    """Autograd gives the gradients of a pair one piece of memory: small pairs and large ones, hooks before and after."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        sizes = (2, 2, 190, 190) * 2
        self.pairs = nn.ParameterList(nn.Parameter(torch.randn(size, size) / size) for size in sizes)
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        for pair in list(self.pairs)[:2]:
            pair.register_post_accumulate_grad_hook(double)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for number, norm in enumerate(self.norms):
            x = norm(x)
            a, b, c, d = (pair.view(-1) for pair in self.pairs[4 * number : 4 * number + 4])
            x = x * ((a + b).pow(2).sum() + (c + d).pow(2).sum())
        return self.last(x)


def double(parameter):
    parameter.grad.mul_(2)


class CheckpointedTwice(nn.Module):
    """A block that a lane's backward reaches twice: its two gradients are added to each other first."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        x = self.first(x.flatten(1))
        for _ in range(2):
            x = checkpoint(self.block, x, use_reentrant=True)
        return self.last(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.cells, self.head = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, dropout=0.2), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.cells(self.tokens(tokens).transpose(0, 1))[0][-1])


class Padded(nn.Module):
    """A mask of the dtype that the first stage computes; in evaluation torch takes its fast path for attention."""

    def __init__(self):
        super().__init__()
        self.tokens, self.into, self.head = nn.Embedding(11, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, tokens):
        padding = (tokens == 0) & (torch.arange(6) > 0)
        return self.head(self.encoder(self.into(self.tokens(tokens)), src_key_padding_mask=padding).mean(1))


class Scaled(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x, scale):
        return self.layer(x) * scale


class LooksAtDtype(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.into, self.scaled, self.head = (
            nn.Embedding(11, 16),
            nn.Linear(16, 16),
            Scaled(),
            nn.Linear(16, 3),
        )

    def forward(self, tokens):
        x = self.into(self.tokens(tokens))
        return self.head(self.scaled(x, (1 + tokens * 0.3).unsqueeze(-1).to(x.dtype)).mean(1))


class Spectral(nn.Module):
    """Makes new buffers in forward; those of the last layer do not change in the first one."""

    def __init__(self):
        super().__init__()
        norm = torch.nn.utils.parametrizations.spectral_norm
        self.layers = nn.Sequential(nn.Flatten(), norm(nn.Linear(64, 8)), nn.Tanh(), norm(nn.Linear(8, 3)))

    def forward(self, x):
        return self.layers(x)


class TwoResults(nn.Module):
    """The second result depends on the last stage only."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.flatten(1)))), self.last.weight.square().sum()


class Strided(nn.Module):
    """Every second column goes over the cut. Masks are made where activations are, and used on both sides."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 16), Scaled(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x.flatten(1))[:, ::2]
        weights = torch.arange(8, device=x.device) / 8
        return self.last(self.middle(x * weights, weights))


def strided_at_the_cut():
    return fit(Strided(), cut=["middle"])


def checkpointed_at_the_cut():
    return fit(Checkpointed(), cut=["blocks.1"])


def block_in_two_reentrant_checkpoints():
    return fit(CheckpointedTwice(), cut=("last",))


def hooks_that_write():
    """Hooks of the script, registered before and after the run's own, and again after the model was cut."""
    model = UnreducedMetrics()

    def register(_):
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(double)

    return fit(model, cut=("norms.1",), before=register)


def module_hooks_that_look():
    """What a module's hook makes of the gradient of a layer that autograd has left already goes into the next one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 600), nn.Linear(600, 600), nn.Linear(600, 3))

    def look(_, given, __):
        later = model[2].weight.grad
        return (given[0] * (1 + later.abs().max()), *given[1:]) if given[0] is not None and later is not None else None

    model[1].register_full_backward_hook(look)
    return fit(model, cut=["3"])


def sparse_gradients():
    bag = nn.EmbeddingBag(11, 8, sparse=True)
    return fit(nn.Sequential(bag, nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 3)), tokens_data)


def recurrent():
    return fit(Recurrent(), tokens_data)


def fast_path_of_attention():
    return fit(Padded(), tokens_data, cut=["encoder.layers.1"])


def fast_path_of_attention_in_bfloat16():
    return fit(Padded(), tokens_data, cut=["encoder.layers.1"], precision="bf16-mixed")


def dtype_of_another_stage():
    return fit(LooksAtDtype(), tokens_data, cut=["scaled"], precision="bf16-mixed")


def new_buffers_in_forward():
    return fit(Spectral())


def statistics_that_come_later():
    """BatchNorm rests in the step in which the model is cut."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), *head()
    )
    return fit(model, cut=["3"], before=lambda epoch: model.train(epoch > 0))


def head():
    return nn.ReLU(), nn.Linear(8, 3)


def evaluation_with_gradients():
    return fit(mlp(), evaluates_with_gradients=True)


def teacher_in_the_lane(run, model, batch):
    with torch.no_grad():
        target = model(batch[0]).softmax(1)
    target = target + model(batch[0]).detach().softmax(1)  # a call with gradients that nobody asks for
    run.backward(-(F.log_softmax(model(batch[0]), 1) * target).mean())


def two_backwards(run, model, batch):
    scores, penalty = model(batch[0])
    run.backward(0.1 * penalty, retain_graph=True)
    run.backward(F.cross_entropy(scores, batch[1]))
    run.backward(0.1 * model(batch[0])[0].square().mean())


def result_without_the_first_stage(run, model, batch):
    run.backward(model(batch[0])[1])


def lanes_without_backward(run, model, batch):
    """Every second lane has no backward, and every fourth one does not call the model."""
    model.lanes = getattr(model, "lanes", 0) + 1
    if model.lanes % 4:
        loss = F.cross_entropy(model(batch[0])[0], batch[1])
        if model.lanes % 2:
            run.backward(loss)


def graph_that_is_kept(run, model, batch):
    """What a lane leaves behind refers to parameters, also while the model is cut."""
    scores, penalty = model(batch[0])
    model.kept = penalty.square()
    run.backward(F.cross_entropy(scores, batch[1]))


CORNERS = {
    function.__name__: function
    for function in [
        strided_at_the_cut,
        checkpointed_at_the_cut,
        block_in_two_reentrant_checkpoints,
        sparse_gradients,
        hooks_that_write,
        module_hooks_that_look,
        recurrent,
        fast_path_of_attention,
        fast_path_of_attention_in_bfloat16,
        dtype_of_another_stage,
        new_buffers_in_forward,
        statistics_that_come_later,
        evaluation_with_gradients,
    ]
}


def fit_with(build, lane, cut):
    return fit(build(), cut=cut, lane=lane)


LOOPS = {
    "teacher_in_the_lane": partial(fit_with, mlp, teacher_in_the_lane, ()),
    "two_backwards": partial(fit_with, TwoResults, two_backwards, ("last",)),
    "result_without_the_first_stage": partial(fit_with, TwoResults, result_without_the_first_stage, ("last",)),
    "graph_that_is_kept": partial(fit_with, TwoResults, graph_that_is_kept, ("last",)),
    "lanes_without_backward": partial(fit_with, TwoResults, lanes_without_backward, ("last",)),
}
"""Loops that a pipeline does not take."""


def all_of(corners):
    """One after the other in one process."""
    return {name: corner() for name, corner in corners.items()}
