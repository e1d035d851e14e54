"""A state that somebody changed and sealed again is refused, or the run goes on with it; half of it is never loaded."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import hostile_states as hostile
from tests.scripts.hostile_states import (
    changed,
    load_each,
    seal,
    tensors_of,
    train_and_save,
    variations_of,
    write_manifest,
)

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "state"
    run_ranks(train_and_save, Started(1), str(path))
    return path


def documents(path, every):
    """With one value of `state.json` changed."""
    original = (path / "state.json").read_bytes()
    return load_each(
        path, lambda one: hostile.change_documents(path, original, one), [*variations_of(original)][::every]
    )


def manifests(path, every):
    """With one value of the manifest changed."""
    original = (path / "manifest.json").read_bytes()
    return load_each(
        path, lambda one: hostile.change_manifest(path, original, one), [*variations_of(original)][::every]
    )


def tensors(path, every):
    """With one tensor that is gone, or of another shape or kind."""
    wrong = []
    for file, original in tensors_of(path).items():
        whole, some = (
            (path / file).read_bytes(),
            [(name, how) for name in original for how in ("gone", "shape", "kind")],
        )
        wrong += load_each(path, lambda one, f=file, o=original: hostile.change_tensors(path, f, o, one), some[::every])
        (path / file).write_bytes(whole)
        seal(path)
    return wrong


def wrong_with(part, path, every):
    return {"documents": documents, "manifests": manifests, "tensors": tensors}[part](Path(path), every)


@pytest.mark.parametrize(("part", "every"), [("documents", 499), ("manifests", 31), ("tensors", 3)])
def test_a_changed_state_is_refused_before_the_model_is_written_to_or_can_be_gone_on_with(state, tmp_path, part, every):
    shutil.copytree(state, tmp_path / "state")
    assert run_ranks(wrong_with, Started(1), part, str(tmp_path / "state"), every) == [[]]


@pytest.mark.thorough
@pytest.mark.parametrize("part", ["documents", "manifests"])
def test_more_changed_states(state, tmp_path, part):
    shutil.copytree(state, tmp_path / "state")
    assert run_ranks(
        wrong_with, Started(1, timeout_s=110), part, str(tmp_path / "state"), 41 if part == "documents" else 3
    ) == [[]]


def said_of_each(path, original, variations):
    """What two ranks say of some states, and whether the model stayed as it was."""
    said = []
    for where, new in variations:
        run, model, *_, average = hostile.started()
        kept = digest_of(model)
        run.barrier()
        if run.is_main:
            text = json.dumps(changed(json.loads(original), where, new)).replace('"DEEP"', "[" * 3000 + "]" * 3000)
            (Path(path) / "state.json").write_text(text)
            seal(Path(path))
        run.barrier()
        try:
            run.load_state(path, average=average)
        except samebits.UsageError as error:
            said.append(str(error).partition("does not fit this run: ")[2])
        assert digest_of(model) == kept
    return said


def test_every_rank_says_what_is_wrong(state, tmp_path):
    shutil.copytree(state, tmp_path / "state")
    variations = {
        "its counter step is -3.": (("documents", "the run", "step"), -3),
        "its random state of NumPy is not valid.": (("documents", "random numbers", "numpy", "state", "pos"), 10**9),
        "AdamW refuses the options of a group (Invalid epsilon value: -1).": (("documents", "optimizer", "groups", 0, "options", "eps"), -1),
        "scheduler.step is not part of the state of a OneCycleLR.": (("documents", "scheduler", "state", "step"), 3),
        "the average does not accept its state": (("documents", "average=", "value", "items", 0, 1), [1]),
        "it is not what samebits writes (KeyError('documents')).": ((), {}),
        "it is not what samebits writes (KeyError('random numbers')).": (("documents", "random numbers"), ...),
        "it is not what samebits writes (RecursionError": (("documents", "best=", "value"), "DEEP"),
    }  # fmt: skip
    original = (state / "state.json").read_bytes()
    run = (said_of_each, Started(2, lanes=2), str(tmp_path / "state"), original, [*variations.values()])
    for said in run_ranks(*run):
        for sentence, expected in zip(said, variations, strict=True):
            assert sentence.startswith(expected)


def sentence_of(path):
    run, model, *_, average = hostile.started()
    kept = digest_of(model)
    try:
        run.load_state(path, average=average)
    except samebits.UsageError as error:
        assert digest_of(model) == kept
        return str(error)
    return ""


def sentences_of(paths):
    return [sentence_of(path) for path in paths]


def test_what_is_no_regular_file_is_one_sentence_at_once(state, tmp_path):
    made = {}
    for name in ("manifest.json", "state.json", "model.safetensors"):
        for make, what in (
            (os.mkfifo, "a FIFO"),
            (lambda path: path.symlink_to("/dev/zero"), "a link"),
            (os.mkdir, "a folder"),
        ):
            place = tmp_path / str(len(made))
            shutil.copytree(state, place)
            (place / name).unlink()
            make(place / name)
            made[place] = f"{place / name} cannot be read (it is {what}, not a regular file)."
    [said] = run_ranks(sentences_of, Started(1), [str(place) for place in made])
    for sentence, expected in zip(said, made.values(), strict=True):
        assert sentence.startswith(expected)


def test_no_file_is_opened_that_the_manifest_does_not_name(state, tmp_path):
    shutil.copytree(state, tmp_path / "state")
    manifest = json.loads((tmp_path / "state" / "manifest.json").read_bytes())
    del manifest["files"]["state.safetensors"]
    write_manifest(tmp_path / "state", manifest)
    (tmp_path / "state" / "state.safetensors").unlink()
    os.mkfifo(tmp_path / "state" / "state.safetensors")
    [[said]] = run_ranks(sentences_of, Started(1), [str(tmp_path / "state")])
    assert "does not fit this run: its manifest does not name state.safetensors." in said
