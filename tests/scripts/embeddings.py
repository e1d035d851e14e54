"""Embeddings whose gradients have few rows: the same bits however the rows travel."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.registration import scenario
from tests.scripts.scenarios import digits, train

WORDS = 6000


def words_of(images, num_words=WORDS):
    """64 words for each picture: pictures share many, and some are padding."""
    return (images.flatten(1) * 16).long() * (torch.arange(64, device=images.device) + 331) % num_words


class Words(nn.Module):
    """A table of 1.5 MB that is looked up twice; the second time its rows are changed in place."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 64, padding_idx=0)
        self.head = nn.Linear(64, 10)

    def forward(self, images):
        words = words_of(images)
        changed = self.words(words[:, :8] // 2)
        changed += 1
        return self.head(self.words(words).mean(1) + changed.mean(1))


class Tied(Words):
    """The head's weights are the table's, in some lanes."""

    def forward(self, images):
        hidden = self.words(words_of(images)).mean(1)
        logits = self.head(hidden)
        return logits + hidden @ self.words.weight[1:11].t() if images[0].sum() > 19.5 else logits


def watched(model):
    """The same model, but a hook of the script sees the gradient of the table, so that it must be whole."""
    found = model()
    found.words.weight.register_hook(lambda gradient: gradient.clone(memory_format=torch.contiguous_format))
    return found


def twice_in_a_lane(model, images, labels):
    return F.cross_entropy(model(images), labels) + F.cross_entropy(model(images.flip(-1)), labels)


@scenario
def word_vectors():
    """Rows, and whole tables, have the same bits."""
    by_rows, whole = train(Words), train(lambda: watched(Words))
    assert by_rows == whole
    tied, whole = (train(made, loss_of=twice_in_a_lane) for made in (Tied, lambda: watched(Tied)))
    assert tied == whole
    return {"words": by_rows, "tied": tied}


@scenario
def rows_in_several_backwards():
    """Gradients stay over steps, lanes call backward twice, and some weigh nothing."""
    run = samebits.init(seed=1, lanes=4)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=14, shuffle=True))
    for step in run.steps(loader):
        for images, labels in step:
            loss = F.cross_entropy(model(images), labels)
            weight = 0.0 if labels[0] == 5 else float(len(labels))
            run.backward(loss, weight=weight)
            run.backward(0.1 * model(images / 3).square().mean(), weight=weight)
            gradient = model.words.weight.grad
            assert gradient is None or gradient.layout is torch.strided  # as the script knows it
        if step.number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step.number % 4 == 1)
    return {"model": digest_of(model), "gradient": digest_of(model.words.weight.grad), "loss": step.loss.hex()}


def sparse_model():
    table = nn.EmbeddingBag(WORDS, 16, sparse=True, mode="sum")
    return nn.ModuleDict({"small": nn.Embedding(10, 16, sparse=True), "large": table, "head": nn.Linear(16, 10)})


def trained_sparsely(optimizers_of, lanes=4, max_norm=1.0):
    """The ordinary loop; returns bits, and what the gradients looked like."""
    run = samebits.init(seed=3, lanes=lanes)
    model = sparse_model()
    optimizers = optimizers_of(model)
    model, loader, *optimizers = run.prepare(model, DataLoader(digits(), batch_size=32, shuffle=True), *optimizers)
    layouts, norms = set(), []
    for step in run.steps(loader):
        for images, labels in step:
            hidden = model["large"](words_of(images)) + model["small"](labels // 2 if step.number % 3 else labels * 0)
            run.backward(F.cross_entropy(model["head"](hidden), labels))
        norms.append(run.clip_grad_norm_(model.parameters(), max_norm).hex())
        layouts |= {str(model[name].weight.grad.layout) for name in ("small", "large")}
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return {"model": digest_of(model), "layouts": sorted(layouts), "norms": norms}


def sgd(model):
    return [torch.optim.SGD(model.parameters(), lr=0.5)]


def momentum(model):
    return [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)]


def adagrad(model):
    return [torch.optim.Adagrad(model.parameters(), lr=0.1)]


def sparse_adam(model):
    tables = [model["small"].weight, model["large"].weight]
    return [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.Adam(model["head"].parameters(), lr=0.01)]


@scenario
def sparse_gradients():
    """Sparse for the optimizer that takes them so, dense for the one that would keep a sparse state."""
    alone, kept = trained_sparsely(sgd), trained_sparsely(momentum)
    assert kept.pop("layouts") == ["torch.strided"]
    return {"sgd": alone["model"], "norms": alone["norms"], "momentum": kept}


@scenario
def optimizers_of_sparse_gradients():
    found = {one.__name__: trained_sparsely(one) for one in (adagrad, sparse_adam)}
    assert all(one["layouts"] == ["torch.sparse_coo"] for one in found.values())
    return found
