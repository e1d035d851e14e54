"""Embeddings that tell which rows they touched: only where nobody but the engine sees it, and with torch's bits."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import checkpoint

from samebits.errors import UsageError
from samebits.rank.strategy.replica.sparse_embedding import EmbeddingTables, refuse_sparse, require_sparse, takes_sparse
from tests.support.promises import promise

WORDS, WIDTH = 8000, 64
INDICES = torch.tensor([[5, 3, 5], [7999, 0, 3]])


def table(**options):
    torch.manual_seed(0)
    return nn.Embedding(WORDS, WIDTH, **options)


class Listening:
    """Embeddings as they are in an open lane."""

    def __init__(self, model, is_ours=True):
        self.tables = EmbeddingTables.of([("model", model)], list(model.parameters()), looks=True)
        self._is_ours = is_ours

    def __enter__(self):
        self._undo = self.tables.listen(lambda: self._is_ours)

    def __exit__(self, *_):
        self._undo()


def square(looked_up):
    looked_up += 0.5  # in place, as positions are often added
    return (looked_up * torch.linspace(-1, 1, WIDTH)).square().sum()


def gradient(loss_of, model, **listening):
    with Listening(model, **listening):
        loss_of(model).backward()
    return model.weight.grad


def assert_torch_s(found, loss_of, model):
    model = copy.deepcopy(model)
    model.weight.grad = None
    loss_of(model).backward()
    assert model.weight.grad.layout is torch.strided
    assert torch.equal(found.to_dense().view(torch.int32), model.weight.grad.view(torch.int32))


LOSSES = {
    "once": lambda model: square(model(INDICES)),
    "by keyword": lambda model: square(model(input=INDICES)),
    "32 bit indices": lambda model: square(model(INDICES.int())),
    "twice": lambda model: square(model(INDICES)) + square(model(INDICES.flip(0) // 2)),
    "checkpointed": lambda model: checkpoint(lambda x: square(model(x)), INDICES, use_reentrant=False),
    "nothing": lambda model: square(model(INDICES[:0])),
}


@pytest.mark.parametrize("loss_of", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("padding", [None, 3, 5, -1])
def test_the_gradient_has_few_rows_and_torch_s_bits(loss_of, padding):
    model = table(padding_idx=padding)
    found = gradient(loss_of, model)
    assert found.layout is torch.sparse_coo
    assert found._nnz() <= 12
    assert_torch_s(found, loss_of, model)


def user_hook(model):
    model.weight.register_hook(lambda gradient: gradient * 1.0)


def user_hook_after(model):
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    model.weight.register_post_accumulate_grad_hook(lambda _: None)


def user_forward_hook(model):
    model.register_forward_hook(lambda *_: None)


def old_hook_on_backward(model):
    model.register_backward_hook(lambda *_: None)


def replaced_forward(model):
    model.forward = lambda x: F.embedding(x, model.weight)


def replaced_weight(model):
    model.weight = nn.Parameter(model.weight.detach().clone())


@promise(
    "same-bits",
    "Hooks, graphs, transforms and compiled functions see a whole gradient of an embedding, and sparse "
    "gradients kept over steps survive a resume",
    also=[
        "test_a_backward_of_the_script_and_one_of_a_backward_get_whole_gradients",
        "test_transforms_and_compiled_functions_look_up_as_torch_does",
        "test_sparse_gradients_that_are_kept_over_steps_are_sparse_in_a_run_that_goes_on",
    ],
)
@pytest.mark.parametrize(
    "change",
    [user_hook, user_hook_after, user_forward_hook, old_hook_on_backward, replaced_forward],
    ids=lambda one: one.__name__,
)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_whoever_else_looks_at_it_sees_a_whole_gradient(change):
    model = table()
    change(model)
    assert gradient(LOSSES["once"], model).layout is torch.strided


def padded_from_the_end(model, _):
    model.padding_idx = 5 - WORDS


def counted(model, _):
    model.scale_grad_by_freq = True


def other_indices(_, monkeypatch):
    look_up = F.embedding
    monkeypatch.setattr(F, "embedding", lambda x, *others: look_up(x // 2, *others))


def other_padding(_, monkeypatch):
    look_up = F.embedding
    monkeypatch.setattr(F, "embedding", lambda x, weight, *_: look_up(x, weight, 3))


@pytest.mark.parametrize(
    "change", [padded_from_the_end, counted, other_indices, other_padding], ids=lambda one: one.__name__
)
def test_what_counts_is_how_rows_were_looked_up_and_not_what_the_module_said_before(change, monkeypatch):
    model = table(padding_idx=0)
    with Listening(model):
        change(model, monkeypatch)
        LOSSES["twice"](model).backward()
    assert_torch_s(model.weight.grad, LOSSES["twice"], model)


def test_a_copy_that_a_script_makes_or_saves_in_a_lane_is_an_ordinary_module():
    model, file = table(), io.BytesIO()
    with Listening(model):
        copied = copy.deepcopy(model)
        torch.save(model, file)
        file.seek(0)
        for one in (copied, torch.load(file, weights_only=False)):
            LOSSES["once"](one).backward()
            assert one.weight.grad.layout is torch.strided
            assert one(INDICES).equal(model(INDICES))


def test_a_module_of_two_models_tells_its_rows_once():
    model = table()
    found = EmbeddingTables.of([("one", model), ("other", nn.Sequential(model))], [model.weight], looks=True)
    undo = found.listen(lambda: True)
    LOSSES["once"](model).backward()
    undo()
    assert model.weight.grad.layout is torch.sparse_coo
    assert not model._forward_hooks


def test_a_table_with_sparse_gradients_too_is_left_to_torch():
    model = nn.ModuleList([table(), nn.Embedding(WORDS, WIDTH, sparse=True)])
    model[1].weight = model[0].weight
    found = EmbeddingTables.of([("model", model)], list(model.parameters()), looks=True)
    assert (found.sparse, found.embeddings) == ({0}, ())


def test_a_hook_on_all_modules_sees_torch_s_own_output():
    seen = []
    handle = register_module_forward_hook(lambda module, _, output: seen.append(output.grad_fn.name()))
    try:
        assert gradient(LOSSES["once"], table()).layout is torch.strided
    finally:
        handle.remove()
    assert "EmbeddingBackward0" in seen


def test_a_backward_of_the_script_and_one_of_a_backward_get_whole_gradients():
    model = table()
    assert gradient(LOSSES["once"], model, is_ours=False).layout is torch.strided
    with Listening(model):
        [first] = torch.autograd.grad(square(model(INDICES)), [model.weight], create_graph=True)
        [second] = torch.autograd.grad(first.square().sum(), [model.weight])
    [first_of_torch] = torch.autograd.grad(square(model(INDICES)), [model.weight], create_graph=True)
    [second_of_torch] = torch.autograd.grad(first_of_torch.square().sum(), [model.weight])
    assert first.equal(first_of_torch)
    assert second.to_dense().equal(second_of_torch)


def test_a_weight_that_is_used_elsewhere_too_has_a_whole_gradient_of_the_same_bits():
    model = table()

    def loss_of(model):
        hidden = model(INDICES)
        return (hidden @ model.weight[:50].t()).square().sum() + model(INDICES // 3).sum()

    found = gradient(loss_of, model)
    assert found.layout is torch.strided
    assert torch.equal(found + 0, gradient(loss_of, copy_without_gradient(model), is_ours=False))


def copy_without_gradient(model):
    found = copy.deepcopy(model)
    found.weight.grad = None
    return found


def test_most_of_a_table_is_made_whole():
    model = table()
    assert gradient(lambda model: square(model(torch.arange(WORDS // 2 + 1))), model).layout is torch.strided


def test_outside_a_lane_everything_is_as_it_was():
    model = table()
    with Listening(model):
        assert copy.deepcopy(model)(INDICES).equal(model(INDICES))
    assert not model._forward_hooks
    model(INDICES).sum().backward()
    assert model.weight.grad.layout is torch.strided


def test_transforms_and_compiled_functions_look_up_as_torch_does():
    model = table()
    with Listening(model):
        each = torch.func.vmap(model)(INDICES)
        compiled = torch.compile(model, backend="eager")(INDICES)
        with torch.no_grad():
            assert model(INDICES).equal(each)
    assert compiled.equal(each)
    compiled.sum().backward()
    assert model.weight.grad.layout is torch.strided


@pytest.mark.parametrize(
    "module",
    [
        nn.Embedding(10, 4),
        table(max_norm=1.0),
        table(scale_grad_by_freq=True),
        table(dtype=torch.bfloat16),
        table(dtype=torch.float16),
        type("Own", (nn.Embedding,), {"forward": lambda self, x: self.weight[x]})(WORDS, WIDTH),
    ],
    ids=["small", "max_norm", "by frequency", "bfloat16", "float16", "own forward"],
)
def test_what_is_left_to_torch(module):
    assert not EmbeddingTables.of([("model", module)], list(module.parameters()), looks=True).numbers


def test_modules_that_say_sparse_are_tables_of_any_size():
    model = nn.ModuleList([nn.Linear(2, 2), nn.EmbeddingBag(10, 4, sparse=True), nn.Embedding(10, 4, sparse=True)])
    found = EmbeddingTables.of([("model", model)], list(model.parameters()), looks=False)
    assert found.sparse == found.numbers == {2, 3}


SGD, ADAGRAD = torch.optim.SGD, torch.optim.Adagrad
OPTIMIZERS = [
    (SGD, {}, True),
    (SGD, {"momentum": 0.9}, False),
    (SGD, {"weight_decay": 0.1}, False),
    (SGD, {"fused": True}, False),
    (ADAGRAD, {}, True),
    (ADAGRAD, {"weight_decay": 0.1}, False),
    (torch.optim.SparseAdam, {}, True),
    (torch.optim.Adam, {}, False),
    (type("Own", (SGD,), {}), {}, False),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own optimizers make unchecked tensors
@pytest.mark.parametrize(("kind", "options", "takes"), OPTIMIZERS)
def test_gradients_stay_sparse_for_optimizers_that_keep_nothing_sparse(kind, options, takes):
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    tables, trainable = EmbeddingTables(frozenset({0})), [model.weight]
    assert takes_sparse(optimizer, optimizer.param_groups[0]) is takes
    assert tables.kept_sparse(trainable, [optimizer]) == ({0} if takes else set())
    assert tables.kept_sparse(trainable, [optimizer, torch.optim.Adam(model.parameters())]) == set()
    assert tables.kept_sparse(trainable, []) == set()
    model(torch.tensor([1, 1])).sum().backward()
    if takes:
        optimizer.step()
        kept = [one for one in optimizer.state[model.weight].values() if isinstance(one, torch.Tensor)]
        assert all(one.layout is torch.strided for one in kept)


def test_sparse_adam_without_a_sparse_gradient_is_one_sentence():
    model = nn.Embedding(10, 4)
    optimizer = torch.optim.SparseAdam(model.parameters())
    with pytest.raises(UsageError, match="a parameter of shape \\(10, 4\\) on cpu would be dense"):
        require_sparse(optimizer, [model.weight], EmbeddingTables())
    require_sparse(optimizer, [model.weight], EmbeddingTables(frozenset({0})))


def test_where_gradients_are_always_dense_sgd_may_update_a_table_and_adagrad_may_not():
    weight = nn.Embedding(10, 4, sparse=True).weight
    tables = EmbeddingTables(frozenset({0}))
    refuse_sparse(SGD([weight]), [weight], tables)
    refuse_sparse(ADAGRAD([weight], weight_decay=0.1), [weight], tables)
    refuse_sparse(ADAGRAD([weight]), [weight], EmbeddingTables())
    for optimizer in (ADAGRAD([weight]), torch.optim.SparseAdam([weight])):
        with pytest.raises(UsageError, match="Use --strategy ddp"):
            refuse_sparse(optimizer, [weight], tables)
