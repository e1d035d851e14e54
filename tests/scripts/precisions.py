"""Training loops in mixed precision, for `test_precision`. None looks at its rank."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.digests import digest_of
from tests.scripts import scenarios

FLOATS = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
HUGE = 1e30
"""A loss times this overflows in any scale."""


class Numbered(TensorDataset):
    """Digits with their number, so that a loss can single one out."""

    def __init__(self, count=112):
        data = scenarios.digits(count)
        super().__init__(*data.tensors, torch.arange(count))


def prepared(precision, *, lanes=4, model=None, numerics=None):
    run = samebits.init(seed=3, lanes=lanes, precision=precision, numerics=numerics)
    model = (model or scenarios.Cnn)()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    loader = DataLoader(Numbered(), batch_size=30, shuffle=True)
    return run, *run.prepare(model, optimizer, scheduler, loader)


def spoiled(loss, numbers):
    """Sample 17 makes the loss overflow wherever it is."""
    return loss * HUGE if bool((numbers == 17).any()) else loss


def train(precision, *, spoil=False, model=None):
    """Two epochs with clipping, a scheduler and an evaluation; a batch in each epoch may overflow."""
    run, model, optimizer, scheduler, loader = prepared(precision, model=model)
    seen = []
    for _ in run.epochs(2):
        for step in run.steps(loader):
            for images, labels, numbers in step:
                logits = model(images)
                assert logits.dtype == FLOATS.get(precision, torch.float32)
                loss = F.cross_entropy(logits, labels)
                run.backward(spoiled(loss, numbers) if spoil else loss)
                assert torch.is_autocast_enabled(run.device.type) == (precision in FLOATS)
            assert not torch.is_autocast_enabled(run.device.type)
            norm = run.clip_grad_norm_(model.parameters(), 1.0)
            before = digest_of(model, optimizer)
            optimizer.step()
            scheduler.step()
            skipped = before == digest_of(model, optimizer)
            assert skipped == (not torch.isfinite(torch.tensor(float(norm))))
            optimizer.zero_grad()
            seen.append((skipped, step.loss.hex(), norm.hex()))
        tally = run.tally()
        model.eval()
        with torch.no_grad():
            for images, labels, _ in loader:
                logits = model(images)
                assert logits.dtype == FLOATS.get(precision, torch.float32)
                tally.add(loss=F.cross_entropy(logits.float(), labels))
        assert not torch.is_autocast_enabled(run.device.type)
        model.train()
        seen.append(tally.mean()["loss"].hex())
    scaler = run._run.components.scaler
    return {
        "model": digest_of(model),
        "optimizer": digest_of(optimizer),
        "seen": seen,
        "scaler": scaler.state_dict() if scaler else None,
    }


def every_precision():
    """All of them, in one launch."""
    return {
        "32": train("32"),
        "bf16": train("bf16-mixed"),
        "fp16": train("16-mixed"),
        "overflow": train("16-mixed", spoil=True),
        "half model": train("16-mixed", model=HalfInside),
        "own autocast": own_autocast(),
        "own scaler": own_scaler(),
        "gan": two_optimizers(),
    }


class HalfInside(nn.Module):
    """Two forwards in a lane, one of them with autocast off, and a method of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, images):
        with torch.autocast(images.device.type, enabled=False):
            hidden = self.first(images.flatten(1))
        return self.second(hidden.relu())


def own_autocast():
    """The script's autocast: in the lane, and around the whole loop."""
    results = []
    for around in (False, True):
        run, model, optimizer, _, loader = prepared("32")
        with torch.autocast(run.device.type, torch.bfloat16, enabled=around):
            for step in run.steps(loader):
                for images, labels, _ in step:
                    with torch.autocast(run.device.type, torch.bfloat16):
                        loss = F.cross_entropy(model(images), labels)
                    run.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        results.append(digest_of(model))
    run, model, optimizer, _, loader = prepared("bf16-mixed")
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    assert results == [digest_of(model)] * 2, "the script's autocast and precision= are the same arithmetic"
    return results


def own_scaler():
    """torch's scaler in the script's hands under precision 32: the same bits as 16-mixed."""
    digests = []
    for precision in ("32", "16-mixed"):
        run, model, optimizer, _, loader = prepared(precision)
        scaler = torch.amp.GradScaler(run.device.type, enabled=precision == "32")
        for step in run.steps(loader):
            for images, labels, numbers in step:
                with torch.autocast(run.device.type, torch.float16):
                    loss = F.cross_entropy(model(images), labels)
                run.backward(scaler.scale(spoiled(loss, numbers)))
            if precision == "32":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
            optimizer.zero_grad()
        digests.append(digest_of(model, optimizer))
    assert digests[0] == digests[1]
    return digests


def two_optimizers():
    """A pass for each optimizer, one of which overflows; the other's update counts."""
    run = samebits.init(seed=3, lanes=4, precision="16-mixed")
    first, second = scenarios.mlp(), scenarios.mlp()
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second))
    loader = DataLoader(Numbered(), batch_size=30, shuffle=True)
    first, second, one, two, loader = run.prepare(first, second, one, two, loader)
    seen = []
    for step in run.steps(loader):
        for images, labels, _ in step:
            run.backward(F.cross_entropy(first(images), labels))
        one.step()
        one.zero_grad()
        for images, labels, numbers in step:
            run.backward(spoiled(F.cross_entropy(second(images), labels), numbers))
        before = digest_of(second)
        two.step()
        two.zero_grad()
        seen.append((digest_of(first), digest_of(second), before == digest_of(second)))
    return seen, run._run.components.scaler.state_dict()


def leaving_early():
    """However a loop is left, autocast ends with it."""
    run, model, _, _, loader = prepared("bf16-mixed")
    states = []
    for step in run.steps(loader):
        for images, _, _ in step:
            assert model(images).dtype == torch.bfloat16
            break
        states.append(torch.is_autocast_enabled(run.device.type))
        try:
            for _ in step:
                raise KeyError
        except KeyError:
            states.append(torch.is_autocast_enabled(run.device.type))
        for images, _, _ in loader:
            assert model(images).dtype == torch.bfloat16
            break
        states.append(torch.is_autocast_enabled(run.device.type))
        break
    return states


def as_torch_does():
    """One lane under 16-mixed, and torch's own loop with autocast and GradScaler, over an overflow."""
    run = samebits.init(seed=0, lanes=1, precision="16-mixed")
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(scenarios.mlp())
    plain, model = made
    plain.to(run.device)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1) for m in made]
    data = DataLoader(Numbered(), batch_size=30)
    scaler = torch.amp.GradScaler(run.device.type)
    for batch in data:
        images, labels, numbers = (each.to(run.device) for each in batch)
        with torch.autocast(run.device.type, torch.float16):
            loss = spoiled(F.cross_entropy(plain(images), labels), numbers)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[0])
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[0].zero_grad()
    model, optimizer, loader = run.prepare(model, optimizers[1], data)
    for step in run.steps(loader):
        for images, labels, numbers in step:
            run.backward(spoiled(F.cross_entropy(model(images), labels), numbers))
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    theirs, ours = (digest_of(m, o) for m, o in ((plain, optimizers[0]), (model, optimizer)))
    return theirs == ours, scaler.get_scale(), run._run.components.scaler.state_dict()


def in_stages(precision):
    """A model that strategies may cut, with clipping and an overflow; the parameters that this rank has."""
    run = samebits.init(seed=3, lanes=4, precision=precision)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.Linear(32, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    loader = DataLoader(Numbered(), batch_size=30, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    seen = []
    for step in run.steps(loader):
        step.backward(lambda batch: spoiled(F.cross_entropy(model(batch[0]), batch[1]), batch[2]))
        norm = run.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen.append((step.loss.hex(), norm.hex()))
    held = {name: digest_of(p.detach()) for name, p in model.named_parameters() if not p.is_meta}
    scaler = run._run.components.scaler
    return held, seen, scaler.state_dict() if scaler else None
