"""States that somebody changed and sealed again: their checksums are right, but samebits writes no such content."""

import copy
import hashlib
import json
import math
from collections.abc import Iterator

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.protocol.state_files.manifest import _checksum
from samebits.testing.digests import digest_of

JUNK = (
    None, True, -1, 1 << 70, 2.5, math.inf, "x\x1b[2J\nFAILED", [], {}, [[1]],
    {"$": "tuple", "items": [1]}, {"$": "tensor", "name": "none"}, {"$": "numpy", "dtype": "O", "hex": "00"},
    {"$": "float", "bits": "zz"}, {"$": ["a"]}, {"$": "set", "items": [[1]]}, {"$": "device", "name": "\x1b"},
)  # fmt: skip
"""What takes the place of a value."""


def places(value, path=()) -> Iterator[tuple]:
    """The path of every value inside."""
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def changed(value, path, new):
    """A copy with another value, or without it when `new` is `...`."""
    if not path:
        return new
    copied = copy.deepcopy(value)
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copied


def seal(folder):
    """Rewrite the manifest's sizes and checksums."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for name, told in manifest["files"].items():
        data = (folder / name).read_bytes()
        told |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    write_manifest(folder, manifest)


def write_manifest(folder, manifest):
    """Write it with the right checksum of itself."""
    if isinstance(manifest, dict):
        manifest.pop("sha256_of_the_rest", None)
        manifest = {**manifest, "sha256_of_the_rest": _checksum(manifest)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def started():
    """A run with a model, an optimizer that has a state, a scheduler, and an object of the script's own."""
    run = samebits.init(seed=1, lanes=1, threads=1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=8)
    average = nn.Linear(2, 2)
    data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))
    model, optimizer, scheduler, loader = run.prepare(model, optimizer, scheduler, DataLoader(data, batch_size=4))
    return run, model, optimizer, scheduler, loader, average


def train_and_save(path):
    run, model, optimizer, scheduler, loader, average = started()
    for _ in run.epochs(1):
        for step in run.steps(loader):
            step.backward(lambda batch: (model(batch[0]) - batch[1]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
        run.save_state(path, average=average, best=(1, 2.5))


def load_each(path, make, numbers):
    """Load variations of the state in `path` into a new run each; return what went wrong."""
    wrong = []
    for number in numbers:
        name = make(number)
        run, model, optimizer, *_, average = started()
        kept = digest_of(model)
        try:
            run.load_state(path, average=average)
            refused = False
        except samebits.UsageError as error:
            refused = True
            if digest_of(model) != kept or run._run.components.step_timer.step:
                wrong.append(f"{name}: refused after the model was changed: {error}")
            if "\x1b" in str(error):
                wrong.append(f"{name}: raw escape codes in {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if not refused:
            wrong += trouble_after(name, run, model, optimizer)
    return wrong


def trouble_after(name, run, model, optimizer):
    """The run must be able to go on with a state that was accepted."""
    [loader] = run._run.loop_state.prepared.loaders
    try:
        for _ in run.epochs(run._run.loop_state.epochs.resume_next + 1):
            for step in run.steps(loader):
                step.backward(lambda batch: (model(batch[0]) - batch[1]).square().mean())
                optimizer.step()
                optimizer.zero_grad()
    except Exception as error:
        return [f"{name}: taken, and then {type(error).__name__}: {error}"]
    return []


def change_documents(path, original, variation):
    where, new = variation
    document = json.loads(original)
    (path / "state.json").write_text(json.dumps(changed(document, where, new)))
    seal(path)
    return f"{'.'.join(map(str, where))} = {new!r}"


def change_tensors(path, file, original, variation):
    name, how = variation
    tensors = dict(original)
    if how == "gone":
        del tensors[name]
    else:
        tensors[name] = {"shape": tensors[name].reshape(-1)[:1].expand(5).clone(), "kind": tensors[name].bool()}[how]
    save_file(tensors, path / file)
    seal(path)
    return f"{file}: {name} {how}"


def change_manifest(path, original, variation):
    where, new = variation
    write_manifest(path, changed(json.loads(original), where, new))
    return f"manifest.json {'.'.join(map(str, where))} = {new!r}"


def variations_of(text):
    """(path, value) for each value of a JSON text and each kind of junk, and for leaving it out."""
    for where in places(json.loads(text)):
        for new in (*JUNK, *([...] if where else [])):
            yield where, new


def tensors_of(path):
    return {file.name: load_file(file) for file in sorted(path.glob("*.safetensors"))}
