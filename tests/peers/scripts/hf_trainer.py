"""Hugging Face's Trainer on a small GPT-2 that is made here: train, evaluate, save, go on from the checkpoint."""

import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

VOCAB, LENGTH = 32, 12


class Counting(torch.utils.data.Dataset):
    """Rows that count upwards from somewhere: easy to learn."""

    def __init__(self, rows: int) -> None:
        self.rows = [(torch.arange(LENGTH) + row) % VOCAB for row in range(rows)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer(steps: int) -> Trainer:
    arguments = TrainingArguments(
        "out", use_cpu=True, max_steps=steps, per_device_train_batch_size=8, per_device_eval_batch_size=8,
        learning_rate=3e-3, eval_strategy="steps", eval_steps=5, save_steps=10, logging_steps=5, report_to=[],
        ddp_backend="gloo", dataloader_num_workers=1, seed=0, disable_tqdm=True, gradient_accumulation_steps=2,
    )  # fmt: skip
    set_seed(0)
    small = GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    return Trainer(GPT2LMHeadModel(small), arguments, train_dataset=Counting(96), eval_dataset=Counting(40))


def main() -> None:
    first = trainer(10)
    first.train()
    assert first.args.world_size == 2
    assert dist.get_world_size() == 2
    begun = first.evaluate()["eval_loss"]
    dist.barrier()
    second = trainer(20)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 20
    ended = second.evaluate()["eval_loss"]
    assert ended < begun < math.log(VOCAB) + 0.5
    predicted = second.predict(Counting(40))
    assert predicted.predictions.shape == (40, LENGTH, VOCAB)
    second.save_model("model")
    if os.environ["RANK"] == "0":
        assert Path("model/model.safetensors").exists()
        print("peer", json.dumps({"losses": [begun, ended]}))


if __name__ == "__main__":
    main()
