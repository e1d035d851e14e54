"""samebits's Accelerator on real ranks: a script of Accelerate has the same bits on any number of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script, write_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

TRAIN = """
    import os, signal, sys, torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from accelerate.utils import set_seed
    from samebits.integrations.accelerate import Accelerator

    options = os.environ.get("OPTIONS", "").split()
    accelerator = Accelerator(gradient_accumulation_steps=1)
    set_seed(7)
    x, y = torch.randn(100, 12), torch.randint(0, 3, (100,))
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.0 if "plain" in options else 0.2), nn.Linear(24, 3))
    model.eval()  # as from_pretrained returns a model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train = DataLoader(TensorDataset(x, y), batch_size=6, shuffle="plain" not in options)
    test = DataLoader(TensorDataset(x, y), batch_size=7)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 50)
    model, optimizer, train, test, scheduler = accelerator.prepare(model, optimizer, train, test, scheduler)
    assert len(train) == -(-17 // accelerator.num_processes)
    first, skipped = 0, 0
    steps = int(os.environ.get("FROM", "0"))
    if steps:
        accelerator.load_state("state")
        first, skipped = divmod(steps * accelerator.gradient_accumulation_steps, len(train))
    for epoch in range(first, 3):
        model.train()
        batches = accelerator.skip_first_batches(train, skipped) if skipped and epoch == first else train
        for features, labels in batches:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(features), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                if accelerator.sync_gradients:
                    steps += 1
                    if f"save{steps}" in options:
                        accelerator.save_state("state")
                    if f"kill{steps}" in options and accelerator.process_index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                        os.kill(os.getpid(), signal.SIGKILL)
        model.eval()
        losses = []
        for features, labels in test:
            with torch.no_grad():
                scores = model(features)
            losses.append(accelerator.gather_for_metrics(F.cross_entropy(scores, labels, reduction="none")))
        losses = torch.cat(losses)
        accelerator.print("evaluated", len(losses), float(losses.mean()).hex(), scheduler.get_last_lr()[0])
    weights = sum(p.detach().double().sum() for p in accelerator.unwrap_model(model).parameters())
    accelerator.print("weights", float(weights).hex(), len(train))
"""
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def told(ended: Finished) -> list[str]:
    """What the last epoch and the end print."""
    assert ended.code == 0, ended.err
    return re.findall(r"(?:evaluated|weights) .*", ended.out)[-2:]


def run(tmp_path: Path, processes: int, options: str = "", text: str = TRAIN, **more: str) -> Finished:
    return run_script(tmp_path, text, "-n", str(processes), env={**OFFLINE, "OPTIONS": options, **more})


@promise(
    "inside-accelerate-and-the-trainer",
    "`samebits.integrations.accelerate.Accelerator`: weights and `gather_for_metrics` on 1, 2 and 4 "
    "processes, under each launcher, with accumulation, after a kill",
    also=["test_other_launchers_have_the_same_bits", "test_accumulation_counts_in_the_lanes"],
)
def test_the_bits_are_those_of_any_number_of_processes_and_survive_a_kill(tmp_path: Path) -> None:
    one = told(run(tmp_path, 1))
    assert one[0].startswith("evaluated 100 ")
    assert told(run(tmp_path, 2)) == one
    assert told(run(tmp_path, 4)) == one
    killed = run(tmp_path, 2, "kill7")
    assert "SIGKILL" in killed.err
    assert told(killed) == one


@promise(
    "inside-accelerate-and-the-trainer",
    "Where a process of Accelerate is given up, as many go on as divide the lanes, with the bits of one process",
)
def test_where_a_process_is_given_up_as_many_go_on_as_divide_the_lanes(tmp_path: Path) -> None:
    shrunk = run_script(tmp_path, TRAIN, "-n", "4", "--shrink", env={**OFFLINE, "OPTIONS": "kill7"})
    assert "2 ranks, 2 less, start again" in shrunk.err
    assert told(shrunk) == told(run(tmp_path, 1))


@promise(
    "inside-accelerate-and-the-trainer",
    "The Accelerator's `save_state` resumes in the middle of an epoch on other numbers of processes, "
    "also in the step in which a loop was left",
    also=["test_a_state_of_the_step_in_which_the_loop_is_left_goes_on_in_its_epoch"],
)
def test_a_saved_state_goes_on_in_the_middle_of_an_epoch_with_other_processes(tmp_path: Path) -> None:
    whole = told(run(tmp_path, 2, "save7"))
    assert (tmp_path / "state" / "model.safetensors").is_file()
    for processes in (1, 4):
        assert told(run(tmp_path, processes, FROM="7")) == whole
    wrong = run(tmp_path, 1, FROM="8")
    assert wrong.code == 2
    assert "The state was saved after 2 steps of epoch 1, which are 2 batches, and the script skips 3" in wrong.err


@promise(
    "inside-accelerate-and-the-trainer",
    "A state that one process saves is written by all, a loss is gathered for the log before its "
    "backward, and a plateau steps once for each evaluation",
    also=[
        "test_behind_a_loop_over_batches_too_and_at_the_end",
        "test_a_loss_is_gathered_for_the_log_before_its_backward",
        "test_a_plateau_steps_once_for_each_evaluation",
    ],
)
@pytest.mark.parametrize("who", ["accelerator.is_main_process", "os.environ['RANK'] == '0'"])
def test_a_state_that_one_process_saves_is_written_by_all(tmp_path: Path, who: str) -> None:
    alone = TRAIN.replace('accelerator.save_state("state")', f'{who} and accelerator.save_state("state")')
    whole = told(run(tmp_path, 2, "save7", alone))
    assert told(run(tmp_path, 1, FROM="7")) == whole


LEAVING = TRAIN.replace(
    "        model.eval()\n        losses",
    "            if steps == 7 and accelerator.sync_gradients and 'leave' in options: break\n"
    "        if steps == 7 and 'leave' in options: break\n"
    "        model.eval()\n        losses",
)


@pytest.mark.thorough
def test_a_state_of_the_step_in_which_the_loop_is_left_goes_on_in_its_epoch(tmp_path: Path) -> None:
    whole = told(run(tmp_path, 1))
    assert run(tmp_path, 2, "save7 leave", LEAVING).code == 0
    assert told(run(tmp_path, 1, text=LEAVING, FROM="7")) == whole


@pytest.mark.thorough
def test_a_state_that_cannot_be_written_there_ends_the_run(tmp_path: Path) -> None:
    differs = "type('Own', (), {'state_dict': lambda self: {'rank': accelerator.state.process_index}, 'load_state_dict': print})()"
    text = LEAVING.replace(
        "    first, skipped", f"    accelerator.register_for_checkpointing({differs}); first, skipped", 1
    )
    ended = run(tmp_path, 2, "save7 leave", text)
    assert ended.code == 2, ended.err
    assert "is not the same on every rank" in ended.err


@pytest.mark.thorough
def test_behind_a_loop_over_batches_too_and_at_the_end(tmp_path: Path) -> None:
    save = "accelerator.is_main_process and accelerator.save_state"
    text = TRAIN.replace("        model.eval()\n", f"        epoch or {save}('state')\n        model.eval()\n") + (
        f"    {save}('end')\n"
    )
    whole = told(run(tmp_path, 2, text=text))
    assert (tmp_path / "end" / "samebits" / "manifest.json").is_file()
    assert told(run(tmp_path, 4, text=text, FROM="5")) == whole


def test_states_that_accelerate_numbers_have_the_same_number_everywhere(tmp_path: Path) -> None:
    naming = "project_config=__import__('accelerate').utils.ProjectConfiguration('p', automatic_checkpoint_naming=True)"
    text = TRAIN.replace("gradient_accumulation_steps=1", naming).replace('save_state("state")', "save_state()")
    run(tmp_path, 2, "save3 save7", text)
    assert sorted(one.name for one in (tmp_path / "p" / "checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]


@pytest.mark.thorough
def test_a_loss_is_gathered_for_the_log_before_its_backward(tmp_path: Path) -> None:
    text = TRAIN.replace(
        "accelerator.backward(loss)",
        "logged = accelerator.gather(loss.repeat(6)).mean().item() + accelerator.reduce(loss, 'mean').item(); "
        "accelerator.backward(loss); accelerator.gather(loss.detach())",
    ).replace("steps += 1", "steps += 1; last = accelerator.step_loss.hex()")
    text += '    accelerator.print("weights loss", last)\n'
    one = told(run(tmp_path, 1, text=text))
    assert told(run(tmp_path, 2, text=text)) == told(run(tmp_path, 4, text=text)) == one
    assert one[0] == told(run(tmp_path, 1))[1]


@pytest.mark.thorough
def test_a_plateau_steps_once_for_each_evaluation(tmp_path: Path) -> None:
    text = TRAIN.replace(
        "LinearLR(optimizer, 1.0, 0.1, 50)", "ReduceLROnPlateau(optimizer, patience=1, factor=0.5)"
    ).replace("                scheduler.step()\n", "")
    text = text.replace(
        "        losses = torch.cat(losses)\n", "        losses = torch.cat(losses); scheduler.step(1.0)\n"
    )
    one = told(run(tmp_path, 1, text=text))
    assert one[0].endswith(" 0.005")
    assert told(run(tmp_path, 2, text=text)) == one
    of_a_process = run(tmp_path, 2, text=text.replace("scheduler.step(1.0)", "scheduler.step(loss)"))
    assert of_a_process.code == 2
    assert "ReduceLROnPlateau.step was given another number on each process" in of_a_process.err


@pytest.mark.thorough
def test_accumulation_counts_in_the_lanes(tmp_path: Path) -> None:
    text = TRAIN.replace("gradient_accumulation_steps=1", "gradient_accumulation_steps=2")
    one, two = run(tmp_path, 1, text=text), run(tmp_path, 2, text=text)
    assert told(one) == told(two)
    assert "as under 2 processes with gradient_accumulation_steps=2" in one.err
    # Twice as many batches for each of the two processes that the script stands for.
    assert told(one)[1].endswith(" 9")


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.thorough
def test_the_seed_of_the_script_is_that_of_the_run(tmp_path: Path, place: str) -> None:
    def seeded(seed: int) -> list[str]:
        text = TRAIN.replace("    set_seed(7)\n", "" if place == "before" else f"    set_seed({seed})\n").replace(
            "    accelerator = Acc", f"    set_seed({seed})\n    accelerator = Acc"
        )
        # The same weights to begin with: only the order of samples and dropout are the seed's.
        return told(
            run(
                tmp_path,
                1,
                text=text.replace(
                    "    optimizer = ", "    [p.data.fill_(0.1) for p in model.parameters()]\n    optimizer = "
                ),
            )
        )

    assert seeded(3) == seeded(3)
    assert seeded(3) != seeded(4)


@pytest.mark.thorough
def test_drop_last_evaluates_no_sample_twice(tmp_path: Path) -> None:
    text = TRAIN.replace("batch_size=7)", "batch_size=7, drop_last=True)")
    one = told(run(tmp_path, 1, text=text))
    assert one[0].startswith("evaluated 98 ")
    assert told(run(tmp_path, 4, text=text)) == one


@pytest.mark.thorough
@pytest.mark.parametrize(
    "launcher",
    [
        ("torch.distributed.run", "--nproc-per-node", "2"),
        ("accelerate.commands.launch", "--cpu", "--num_processes", "2"),
        (),
    ],
)
def test_other_launchers_have_the_same_bits(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    one = told(run(tmp_path, 1))
    script = write_script(tmp_path, TRAIN)
    words = [sys.executable, *(("-m", *launcher) if launcher else ()), str(script)]
    variables = {**os.environ, **OFFLINE, "OMP_NUM_THREADS": "1", "OPTIONS": ""}
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert re.findall(r"(?:evaluated|weights) .*", done.stdout)[-2:] == one, done.stderr


@promise(
    "inside-accelerate-and-the-trainer",
    "Accelerator and Trainer come to the numbers of the library's own class on as many processes as "
    "lanes, but for rounding; what cannot be exact is one sentence",
    also=[
        "test_transformers_own_trainer_comes_to_the_same_numbers",
        "test_accelerate.py::test_what_cannot_be_exact_is_one_sentence",
        "test_trainer.py::test_what_cannot_be_exact_is_one_sentence",
    ],
)
@pytest.mark.thorough
def test_accelerates_own_class_comes_to_the_same_numbers(tmp_path: Path) -> None:
    plain = TRAIN.replace("samebits.integrations.accelerate", "accelerate").replace("nn.BatchNorm1d(24)", "nn.Tanh()")
    theirs, ours = (
        told(run(tmp_path, 4, "plain", plain)),
        told(run(tmp_path, 2, "plain", TRAIN.replace("nn.BatchNorm1d(24)", "nn.Tanh()"))),
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert [float.fromhex(word) for word in mine.split()[1:3]] == pytest.approx(
            [float.fromhex(word) for word in other.split()[1:3]], rel=1e-6
        )
        assert mine.split()[3:] == other.split()[3:]


MISTAKES = {
    "lanes that accumulation does not divide": ("gradient_accumulation_steps=1", "gradient_accumulation_steps=3, lanes=4", "gradient_accumulation_steps=3 does not divide 4 lanes"),
    "lanes that processes do not divide": ("gradient_accumulation_steps=1", "lanes=3", "2 processes do not divide 3 lanes"),
    "a deepspeed plug-in": ("gradient_accumulation_steps=1", "deepspeed_plugin=object()", "DeepSpeed adds gradients in its own way"),
    "two backwards": ("accelerator.backward(loss)\n", "accelerator.backward(loss); accelerator.backward(F.cross_entropy(model(features), labels))\n", "backward was called"),
    "accumulation by counting": ("optimizer.step()", "steps % 2 or accelerator.sync_gradients or optimizer.step()", "optimizer.step() was not called in every batch of a step"),
    "an update before backward": ("optimizer.zero_grad()\n", "optimizer.step()\n", "optimizer.step() was called before backward"),
    "dispatched batches": ("gradient_accumulation_steps=1", "dataloader_config=__import__('accelerate').DataLoaderConfiguration(dispatch_batches=True)", "dispatch_batches=True lets process 0 read for all"),
    "uneven batches": ("gradient_accumulation_steps=1", "dataloader_config=__import__('accelerate').DataLoaderConfiguration(even_batches=False)", "even_batches=False leaves the last step"),
    "a loop left in the middle of a step": ("loss = F", "if steps == 2 and accelerator.sync_gradients: break\n                loss = F", "was left in the middle of a step"),
    "a loss of several processes": ("loss = F", "accelerator.reduce(features.sum()); loss = F", "reduce was called before the backward of a batch"),
    "evaluated batches of different sizes": ("batch_size=7)", "batch_sampler=[[0], [1, 2], [3]])", "makes batches of different sizes"),
    "a gathered loss in a loss": ("accelerator.backward(loss)", "accelerator.backward(loss + accelerator.gather(loss).mean())", "returned before the backward of a batch was used in a loss"),
    "a gathered number of tokens": ("loss = F", "tokens = accelerator.gather(labels.sum()); loss = F", "gather was called before the backward of a batch"),
    "a scheduler that is not prepared": (" = accelerator.prepare(model, optimizer, train, test, scheduler)", "= *accelerator.prepare(model, optimizer, train, test), scheduler", "lr of an optimizer was changed between two batches of one step"),
    "another Accelerator in the loop": ("loss = F", "Accelerator(); loss = F", "Another Accelerator() was made inside the loop over batches"),
    "another Accelerator before the loop": ("    first, skipped", "    Accelerator(); first, skipped", "because another Accelerator() was made in this process"),
    "two optimizers with a backward each": ("optimizer.step()", "optimizer.step(); accelerator.backward(F.cross_entropy(model(features), labels))", "backward was called behind optimizer.step() of the same batch"),
    "an update between two backwards": ("accelerator.backward(loss)", "accelerator.backward(loss, retain_graph=True); optimizer.step(); accelerator.backward(loss)", "for batch in step:` once for each optimizer"),
    "training in eval mode": ("        model.train()\n", "", "Call model.train() before the loop"),
    "backward of the loss itself": ("accelerator.backward(loss)", "loss.backward()", "Call accelerator.backward(loss) instead"),
    "a loader that is not prepared": ("for features, labels in batches", "for features, labels in DataLoader(TensorDataset(x, y), batch_size=6)", "loader = accelerator.prepare(loader)"),
    "two loaders at once": ("for features, labels in batches", "for (features, labels), _ in zip(batches, accelerator.prepare(DataLoader(TensorDataset(x), batch_size=6)))", "began inside another one (zip of two loaders"),
    "batches that are skipped": ("with accelerator.accumulate(model):", "if steps == 0: accelerator.loop.let_script_skip(); continue\n            with accelerator.accumulate(model):", "Leave out the `continue` that skips batches"),
    "an evaluation in training mode": ("model.eval()\n        losses", "losses", "write model.eval() or torch.no_grad()"),
    "a seed of each process": ("accelerator = Acc", "set_seed(int(os.environ['RANK'])); accelerator = Acc", "set_seed was called before Accelerator() with another number on each process"),
    "a seed of each process behind it": ("set_seed(7)", "set_seed(7 + accelerator.process_index)", "set_seed was called with another number on each process: "),
    "gradients clipped in each batch": ("accelerator.backward(loss)", "accelerator.backward(loss); nn.utils.clip_grad_norm_(model.parameters(), 0.1)", "Do this behind backward where accelerator.sync_gradients is true"),
    "a state of a step that is not over": ("loss = F", "accelerator.save_state('state'); loss = F", "save_state was called inside a step"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_exact_is_one_sentence(tmp_path: Path, mistake: str) -> None:
    before, after, says = MISTAKES[mistake]
    assert before in TRAIN
    ended = run(tmp_path, 2, text=TRAIN.replace(before, after))
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert ("was left in the middle of a step" in ended.err) == (mistake == "a loop left in the middle of a step")


@promise(
    "inside-accelerate-and-the-trainer",
    "A script that counts batches where numbers of processes would differ ends with a sentence that says what to count",
)
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("break", "was left before the end of its epoch by a script that never asks accelerator.sync_gradients"),
        (
            "list(test)",
            "was called inside the loop over batches by a script that never asks accelerator.sync_gradients",
        ),
    ],
)
def test_a_script_that_counts_batches_is_told_where_processes_would_differ(
    tmp_path: Path, what: str, says: str
) -> None:
    counting = TRAIN.replace("if accelerator.sync_gradients:", "if False:").replace(
        "    for features, labels in batches:", "    for number, (features, labels) in enumerate(batches):"
    )
    counting = counting.replace(
        "        model.eval()\n        losses",
        f"            if number == 7:\n                model.eval(); {what}\n        model.eval()\n        losses",
    )
    ended = run(tmp_path, 2, text=counting)
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert "count accelerator.completed_steps" in ended.err


@pytest.mark.thorough
def test_a_look_at_one_batch_and_a_stop_by_steps_are_allowed_and_the_stop_is_said(tmp_path: Path) -> None:
    text = TRAIN.replace(
        "    for epoch in range(first, 3):",
        "    model.train(); next(iter(train))\n    for epoch in range(first, 3):",
        1,
    )
    text = text.replace(
        "        model.eval()\n        losses",
        "            if steps == 7 and accelerator.sync_gradients:\n                break\n        model.eval()\n        losses",
        1,
    )
    ended = [run(tmp_path, processes, text=text) for processes in (1, 2)]
    assert told(ended[0]) == told(ended[1])
    assert "left after step" in ended[0].err


@promise("inside-accelerate-and-the-trainer", "`verify --ranks` proves a script of Accelerate")
def test_verify_proves_a_script_of_accelerate_on_two_numbers_of_ranks(tmp_path: Path) -> None:
    script = str(Path(__file__).parents[3] / "examples/integrations/accelerate_digits.py")
    words = [sys.executable, "-m", "samebits", "verify", "-q", "--ranks", "1,2", "--steps", "4", script]
    proved = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert proved.returncode == 0, proved.stdout + proved.stderr
    assert "SAME BITS on 1 and 2 ranks: 4 steps" in proved.stdout
