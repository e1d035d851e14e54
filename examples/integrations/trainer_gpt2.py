"""A small GPT-2 with Hugging Face's Trainer, on the text of this Python's own library, without a download.

samebits run -n 2 examples/integrations/trainer_gpt2.py
"""

import inspect
import random
import tempfile

import torch
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

from samebits.integrations.transformers import Trainer  # the one line that differs

LENGTH = 64


def rows() -> list[dict[str, torch.Tensor]]:
    """The source of a module, byte by byte, in rows of equal length."""
    text = torch.tensor(list(inspect.getsource(random).encode()))
    (ids,) = TensorDataset(text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)).tensors
    return [{"input_ids": row, "labels": row} for row in ids]


def main() -> None:
    set_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, per_device_train_batch_size=4, num_train_epochs=2, learning_rate=2e-3, warmup_steps=10, logging_steps=20,
            eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        data = rows()
        trainer = Trainer(model=model, args=arguments, train_dataset=data[32:], eval_dataset=data[:32])
        trainer.train()
    if trainer.is_world_process_zero():
        print(f"{sum(float(p.detach().double().sum()) for p in model.parameters()).hex()} is the sum of all weights")


if __name__ == "__main__":
    main()
