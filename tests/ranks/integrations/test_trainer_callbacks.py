"""What callbacks, a Trainer of the script's and its functions keep, and no state holds, is named before a kill and behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script
from tests.support.promises import promise

pytest.importorskip("transformers")
pytestmark = pytest.mark.ranks

TRAIN = """
    import os, signal, sys, torch, transformers as T
    from transformers.trainer_callback import ExportableState
    from samebits.integrations.transformers import Trainer

    kill, kinds = int(sys.argv[1]), sys.argv[2:]
    T.set_seed(3)
    rows = [{"input_ids": torch.full((8,), 3 + number), "labels": torch.full((8,), 4 + number)} for number in range(40)]
    model = T.GPT2LMHeadModel(T.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))

    class Kill(T.TrainerCallback):
        seen = ()
        def on_step_end(self, args, state, control, **named):
            self.steps = state.global_step
            print("at", self.steps, file=sys.stderr)
            if state.global_step == kill and args.process_index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)

    class Ema(T.TrainerCallback):
        shadow = None
        def on_step_end(self, args, state, control, model=None, **named):
            with torch.no_grad():
                if self.shadow is None:
                    self.shadow = {name: one.clone() for name, one in model.named_parameters()}
                for name, one in model.named_parameters():
                    self.shadow[name].lerp_(one, 0.1)
        def state_dict(self):
            return self.shadow or {}
        def load_state_dict(self, state):
            self.shadow = state

    class Exports(T.TrainerCallback, ExportableState):
        def __init__(self, factor):
            self.factor, self.average, self.beside = factor, 1.0, 1.0
        def on_step_end(self, args, state, control, **named):
            self.average = self.factor * self.average + 1
            if "beside" in kinds:
                self.beside = 0.5 * self.beside + 1
        def state(self):
            return {"args": {"factor": self.factor}, "attributes": {"average": self.average}}
        def on_train_end(self, args, state, control, **named):
            if args.process_index == 0:
                print("averages", self.factor, self.average)

    class Collator:
        def __init__(self):
            self.drawn = torch.Generator().manual_seed(1)
        def __call__(self, rows):
            batch = T.default_data_collator(rows)
            batch["input_ids"] = (batch["input_ids"] + torch.randint(2, (), generator=self.drawn)) % 50
            return batch

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            if not hasattr(self, "centre"):
                self.centre, self.losses = 1.0, []
            loss = model(**inputs).loss
            self.losses.append(loss.item())
            if "own" in kinds:
                loss, self.centre = loss * self.centre, 0.9 * self.centre + 0.1 * loss.item()
            return loss

    def hook_of(seen):
        def hook(module, args, out):
            seen[0] *= 0.9
            return out * seen[0]
        return hook

    ema = Ema()
    callbacks = [Kill(), *([ema] if "ema" in kinds or "tracked" in kinds else [])]
    if "exports" in kinds:
        callbacks += [Exports(0.5), Exports(0.9)]
    if "hook" in kinds:
        model.lm_head.register_forward_hook(hook_of([1.0]))
    arguments = T.TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")
    trainer = (Own if "own" in kinds else Trainer)(model=model, args=arguments, train_dataset=rows, callbacks=callbacks, data_collator=Collator() if "collator" in kinds else None)
    if "tracked" in kinds:
        trainer.accelerator.run.track(ema=ema)
    del ema, callbacks
    trainer.train()
    for one in trainer.callback_handler.callbacks:
        if isinstance(one, Ema) and trainer.is_world_process_zero():
            print("shadow", sum(float(value.double().sum()) for value in one.shadow.values()))
"""  # fmt: skip


def run(tmp_path: Path, kill: int, *kinds: str) -> Finished:
    ended = run_script(tmp_path, TRAIN, "-n", "2", args=(str(kill), *kinds), env={"HF_HUB_OFFLINE": "1"})
    assert ended.code == 0, ended.err
    return ended


@promise(
    "never-stuck-nothing-left-behind",
    "What a Trainer's callbacks and hooks or other ranks keep, and no state holds, is named; so is what"
    " is read behind a loop, when the next one begins",
    also=[
        "test_what_changes_on_another_rank_alone_is_said_by_the_first",
        "test_what_is_read_behind_a_loop_is_named_when_the_next_one_begins",
    ],
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ema", "self.shadow of Ema"),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in [("own", "self.centre of Own"), ("collator", "self.drawn of Collator"), ("hook", "seen")]),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_what_the_trainer_calls_and_no_state_holds_is_named_before_a_kill_and_behind_it(
    kind: str, name: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, 8, kind)
    before, behind = ended.err.split("LOST  ")
    assert f"no state holds {name}" in before or f"lanes hand on {name}" in before
    assert f"resumed   without {name}, which no state holds" in behind
    assert "of Kill" not in ended.err
    assert "losses of Own" not in ended.err


@pytest.mark.thorough
def test_callbacks_of_one_class_export_their_own_states_and_what_they_do_not_export_is_named(tmp_path: Path) -> None:
    whole, killed = run(tmp_path, 0, "exports", "beside"), run(tmp_path, 8, "exports", "beside")
    averages = [line for line in whole.out.splitlines() if line.startswith("averages")]
    assert len(averages) == 2
    assert [line for line in killed.out.splitlines() if line.startswith("averages")] == averages
    assert "resumed   without self.beside of Exports, self.beside of Exports 2, which no state holds" in killed.err
    assert "self.average" not in killed.err


@pytest.mark.thorough
def test_a_callback_that_is_tracked_goes_on_and_is_not_named(tmp_path: Path) -> None:
    whole, killed = run(tmp_path, 0, "tracked"), run(tmp_path, 8, "tracked")
    assert "shadow" in whole.out
    assert killed.out.endswith(whole.out[whole.out.index("shadow") :])
    assert "Ema" not in killed.err
    assert "without" not in killed.err
