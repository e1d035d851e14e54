"""samebits's Trainer on real ranks: a script of transformers has the same bits on any number of processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script, write_script
from tests.support.promises import promise

pytest.importorskip("transformers")
pytestmark = pytest.mark.ranks

TRAIN = """
    import hashlib, os, signal, torch, transformers as T
    from samebits.integrations.transformers import Seq2SeqTrainer, Trainer

    kind, options = os.environ.get("KIND", "gpt2"), os.environ.get("OPTIONS", "").split()
    number = {word.partition("=")[0]: int(word.partition("=")[2]) for word in options if "=" in word}
    T.set_seed(3)
    draw = torch.Generator().manual_seed(1)

    def texts(count, classes=False):
        for _ in range(count):
            size = int(torch.randint(5, 13, (1,), generator=draw))
            words = torch.ones(13, dtype=torch.long)
            words[:size] = torch.randint(3, 50, (size,), generator=draw)
            mask = (torch.arange(13) < size).long()
            yield {"input_ids": words, "attention_mask": mask, "labels": int(words[0] > 25) if classes else words.masked_fill(mask == 0, -100)}

    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    rows = list(texts(50, classes=kind == "bert"))
    if kind == "gpt2":
        model = T.GPT2LMHeadModel(T.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))
    if kind == "llama":
        model = T.LlamaForCausalLM(T.LlamaConfig(vocab_size=50, num_key_value_heads=2, max_position_embeddings=32, **sizes))
    if kind == "bert":
        model = T.BertForSequenceClassification(T.BertConfig(vocab_size=50, **sizes))
    if kind == "t5":
        model = T.T5ForConditionalGeneration(T.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0, pad_token_id=0))
    if kind == "vit":
        model = T.ViTForImageClassification(T.ViTConfig(image_size=8, patch_size=4, num_labels=3, **sizes))
        rows = [{"pixel_values": torch.randn(3, 8, 8, generator=draw), "labels": int(torch.randint(0, 3, (1,), generator=draw))} for _ in range(50)]

    class Kill(T.TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            if state.global_step == number.get("kill") and args.process_index == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                os.kill(os.getpid(), signal.SIGKILL)

    makes, arguments = (Seq2SeqTrainer, T.Seq2SeqTrainingArguments) if kind == "t5" else (Trainer, T.TrainingArguments)
    arguments = arguments(
        "out", per_device_train_batch_size=3, per_device_eval_batch_size=5, num_train_epochs=2, learning_rate=1e-2, warmup_steps=3,
        logging_steps=3, eval_strategy="epoch", save_strategy="steps" if "save" in number else "no", save_steps=number.get("save", 500),
        report_to=[], use_cpu=True, **({"train_sampling_strategy": "group_by_length"} if "group" in options else {}), disable_tqdm=True, seed=3, gradient_accumulation_steps=number.get("accumulate", 1),
        gradient_checkpointing="checkpointing" in options, bf16="bf16" in options,
    )
    trainer = makes(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:13], callbacks=[Kill()])
    if "evaluates" in options:
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=f"out/checkpoint-{number['from']}" if "from" in number else None)
    if trainer.is_world_process_zero():
        for line in trainer.state.log_history:
            print("logged", {name: value for name, value in line.items() if name in ("step", "loss", "grad_norm", "eval_loss")})
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().float().numpy().tobytes())
        print("logged", digest.hexdigest())
"""  # fmt: skip


def run(tmp_path: Path, processes: int, options: str = "", kind: str = "gpt2", text: str = TRAIN) -> Finished:
    variables = {"HF_HUB_OFFLINE": "1", "KIND": kind, "OPTIONS": options}
    return run_script(tmp_path, text, "-n", str(processes), env=variables)


def logged(ended: Finished) -> list[str]:
    assert ended.code == 0, ended.err
    return re.findall(r"logged (.*)", ended.out)


@promise(
    "inside-accelerate-and-the-trainer",
    "`samebits.integrations.transformers.Trainer`: weights, log and evaluation, for five architectures,"
    " after a kill, and from a checkpoint in the middle of an epoch",
    also=[
        "test_models_and_arguments_have_the_bits_of_one_process",
        "test_a_checkpoint_goes_on_in_the_middle_of_an_epoch_with_other_processes",
    ],
)
def test_weights_and_log_are_those_of_any_number_of_processes_and_survive_a_kill(tmp_path: Path) -> None:
    one = logged(run(tmp_path, 1))
    assert len(one) == 7
    assert logged(run(tmp_path, 2)) == one
    killed = run(tmp_path, 2, "kill=8")
    assert "after step 8, kept in memory" in killed.err
    assert logged(killed) == one


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "options"),
    [("gpt2", ""), ("gpt2", "accumulate=2"), ("gpt2", "checkpointing"), ("gpt2", "bf16"), ("gpt2", "evaluates"), ("gpt2", "group"), ("llama", ""), ("bert", ""), ("t5", ""), ("vit", "")],
)  # fmt: skip
def test_models_and_arguments_have_the_bits_of_one_process(tmp_path: Path, kind: str, options: str) -> None:
    assert logged(run(tmp_path, 1, options, kind)) == logged(run(tmp_path, 4, options, kind))


@promise("inside-accelerate-and-the-trainer", "`verify` proves a Trainer's script")
@pytest.mark.thorough
def test_verify_proves_a_script_of_the_trainer(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--json",
        "--ranks",
        "1,2",
        "--steps",
        "4",
        write_script(tmp_path, TRAIN),
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(ended.stdout)
    assert result["proved"]
    assert result["plain"]["agreement"] == "agrees"
    assert result["lane_order"]["found"] == "not tried"


@pytest.mark.thorough
def test_a_checkpoint_goes_on_in_the_middle_of_an_epoch_with_other_processes(tmp_path: Path) -> None:
    whole = logged(run(tmp_path, 2, "save=7"))
    assert (tmp_path / "out" / "checkpoint-7" / "trainer_state.json").is_file()
    for processes in (1, 4):
        assert logged(run(tmp_path, processes, "save=100 from=7")) == whole
    shutil.rmtree(tmp_path / "out" / "checkpoint-7" / "samebits")
    others = run(tmp_path, 1, "from=7")
    assert others.code == 2
    assert "checkpoint-7 was not saved by samebits's Trainer" in others.err


@pytest.mark.thorough
def test_transformers_own_trainer_comes_to_the_same_numbers(tmp_path: Path) -> None:
    in_order = TRAIN.replace(
        "    trainer = makes(",
        "    makes._get_train_sampler = lambda self, data=None: torch.utils.data.SequentialSampler(rows)\n    trainer = makes(",
    ).replace("n_head=2)", "n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)")
    plain = in_order.replace("from samebits.integrations.transformers", "from transformers")
    ours, theirs = (
        [eval(line) for line in logged(run(tmp_path, processes, text=text)) if "grad_norm" in line]
        for processes, text in ((2, in_order), (4, plain))
    )
    assert len(ours) == 3
    assert ours == [pytest.approx(line, rel=1e-5) for line in theirs]


MISTAKES = {
    "accumulation that does not divide the lanes": ("callbacks=[Kill()]", "callbacks=[Kill()], lanes=3", "accumulate=2", "gradient_accumulation_steps=2 does not divide 3 lanes"),
    "a batch size that the memory decides": ("use_cpu=True", "use_cpu=True, auto_find_batch_size=True", "", "lets the memory of a process decide"),
    "tokens of a process": ("use_cpu=True", "use_cpu=True, average_tokens_across_devices=False", "", "weighs tokens by those of their process"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_exact_is_one_sentence(tmp_path: Path, mistake: str) -> None:
    before, after, options, says = MISTAKES[mistake]
    assert before in TRAIN
    ended = run(tmp_path, 1, options, text=TRAIN.replace(before, after))
    assert ended.code == 2, ended.err
    assert says in ended.err
