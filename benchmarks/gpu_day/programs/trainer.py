"""Hugging Face's Trainer on a GPU: `trainer.py MODEL [bf16] [fp16] [compile] [checkpointing] [theirs] [timed] [killed]`.

Its last line is a hash of all weights and of what was logged. `timed`: milliseconds of a step instead; `theirs`: with transformers'
own class; `killed`: process 1 is killed after its sixth step, in the first start.
"""

import hashlib
import importlib
import os
import signal
import sys
import tempfile
import time

import torch
import transformers as hf

LENGTH, WORDS, STEPS = 64, 256, 12
SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
WARM_UP, TIMED = 10, 60


def texts(number, classes=False):
    """Rows whose lengths differ, so that losses are weighted by tokens."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(number):
        size = int(torch.randint(LENGTH // 2, LENGTH + 1, (1,), generator=draw))
        words = torch.ones(LENGTH, dtype=torch.long)
        words[:size] = torch.randint(3, WORDS, (size,), generator=draw)
        mask = (torch.arange(LENGTH) < size).long()
        labels = int(words[0] > WORDS // 2) if classes else words.masked_fill(mask == 0, -100)
        yield {"input_ids": words, "attention_mask": mask, "labels": labels}


def pictures(number):
    draw = torch.Generator().manual_seed(1)
    return [{"pixel_values": torch.randn(3, 32, 32, generator=draw), "labels": each % 3} for each in range(number)]


def model_of(kind, large):
    if kind == "gpt2":
        small = {} if large else {"n_embd": 128, "n_layer": 2, "n_head": 4}
        return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, n_positions=1024 if large else LENGTH, **small))
    if kind == "lora":
        peft = importlib.import_module("peft")
        return peft.get_peft_model(
            model_of("gpt2", large),
            peft.LoraConfig(r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", lora_dropout=0.1),
        )
    if kind == "llama":
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, max_position_embeddings=LENGTH, **SIZES)
        )
    if kind == "bert":
        return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=WORDS, **SIZES))
    if kind == "t5":
        return hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=WORDS, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0)
        )  # fmt: skip
    return hf.ViTForImageClassification(hf.ViTConfig(image_size=32, patch_size=8, num_labels=3, **SIZES))


class Clock:
    """The mean time of TIMED steps after the first WARM_UP."""

    def __init__(self):
        self.steps, self.began, self.took = 0, 0.0, 0.0

    def tick(self):
        """A step has been queued; whether it was the last to be timed."""
        self.steps += 1
        if self.steps in (WARM_UP, WARM_UP + TIMED):
            torch.cuda.synchronize()
            self.began, self.took = time.perf_counter(), time.perf_counter() - self.began
        return self.steps == WARM_UP + TIMED

    def says(self):
        return f"milliseconds {self.took / TIMED * 1e3:.3f}"


class Watching(hf.TrainerCallback):
    """Kills a process, and looks at the clock."""

    def __init__(self, kills):
        self.kills, self.clock = kills and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0", Clock()

    def on_step_end(self, args, state, control, **named):  # noqa: ARG002
        self.clock.tick()
        if self.kills and state.global_step == 6 and args.process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    kind, *options = sys.argv[1:]
    timed = "timed" in options
    library = importlib.import_module("transformers" if "theirs" in options else "samebits.integrations.transformers")
    hf.set_seed(3)
    model = model_of(kind, timed)
    number = (WARM_UP + TIMED) * 16 if timed else STEPS * 16
    rows = pictures(number) if kind == "vit" else [*texts(number, classes=kind == "bert")]
    trainers = (
        (library.Seq2SeqTrainer, hf.Seq2SeqTrainingArguments)
        if kind == "t5"
        else (library.Trainer, hf.TrainingArguments)
    )
    watching = Watching("killed" in options)
    with tempfile.TemporaryDirectory() as folder:
        arguments = trainers[1](
            folder, per_device_train_batch_size=16 if timed else 4, num_train_epochs=1, learning_rate=1e-3, warmup_steps=3, seed=3,
            logging_steps=100 if timed else 3, eval_strategy="no" if timed else "epoch", save_strategy="no", report_to=[],
            disable_tqdm=True, gradient_checkpointing="checkpointing" in options, torch_compile="compile" in options,
            bf16="bf16" in options, fp16="fp16" in options,
        )  # fmt: skip
        more = {"lanes": 1} if timed and "theirs" not in options else {}
        trainer = trainers[0](
            model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:13], callbacks=[watching], **more
        )
        trainer.train()
    if trainer.is_world_process_zero():
        if timed:
            print(watching.clock.says())
            return
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().float().cpu().numpy().tobytes())
        for line in trainer.state.log_history:
            digest.update(
                repr({name: line[name] for name in ("loss", "grad_norm", "eval_loss") if name in line}).encode()
            )
        print(f"on {next(model.parameters()).device.type}: weights and log {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
