"""samebits's Trainer with a GPT-2: warm-up, accumulation, an evaluation and a log every few steps."""

import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments, set_seed

from benchmarks.kills import notes
from samebits.integrations.transformers import Trainer

STEPS, EPOCHS, BATCH, LANES, LENGTH = int(sys.argv[1]), 5, 2, 4, 12


class Rows(Dataset[dict[str, Any]]):
    """Words that each sample draws itself, of different lengths."""

    def __len__(self) -> int:
        return STEPS // EPOCHS * BATCH * LANES

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = torch.randint(1, 50, (LENGTH,))
        labels = words.masked_fill(torch.arange(LENGTH) >= 4 + index % 8, -100)
        return {"input_ids": words, "labels": labels, "number": index}


class Noting(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        numbers = inputs.pop("number")
        if model.training:
            notes.samples(self.state.global_step + 1, numbers.tolist())
        return super().compute_loss(model, inputs, *args, **named)


class Ends(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:  # noqa: ARG002
        notes.ended(state.global_step)


set_seed(3)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=50, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    "out", per_device_train_batch_size=BATCH, per_device_eval_batch_size=3, num_train_epochs=EPOCHS, learning_rate=1e-2,
    warmup_steps=10, logging_steps=7, eval_strategy="steps", eval_steps=20, save_strategy="no", report_to=[], use_cpu=True,
    disable_tqdm=True, gradient_accumulation_steps=2, remove_unused_columns=False, seed=3,
)  # fmt: skip
fixed = [{"input_ids": torch.arange(LENGTH), "labels": torch.arange(LENGTH), "number": 0} for _ in range(10)]
trainer = Noting(model=model, args=arguments, train_dataset=Rows(), eval_dataset=fixed, callbacks=[Ends()], lanes=LANES)
trainer.train()
trainer.accelerator.run.save_state("end")
