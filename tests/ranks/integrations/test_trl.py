"""TRL's trainers whose loss is made of a batch alone have the same bits on any number of processes, whatever they gather to log."""

from __future__ import annotations

import pytest

from tests.support.launching import run_script

for needed in ("trl", "datasets", "tokenizers"):
    pytest.importorskip(needed)
pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

TRAIN = """
    import hashlib, importlib, os, datasets.fingerprint, trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed
    from samebits.integrations.transformers import TrainerMixin

    datasets.fingerprint.Hasher.hash = classmethod(lambda kind, value: "0")  # which pickles what some versions cannot
    datasets.disable_caching()
    kind = os.environ["KIND"]
    words = ["<pad>", "<eos>", *[f"w{i}" for i in range(30)]]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    tokens.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"

    def new(made=GPT2LMHeadModel, **more):
        set_seed(0)
        size = dict(vocab_size=len(words), n_positions=64, n_embd=32, n_layer=1, n_head=2)
        return made(GPT2Config(**size, bos_token_id=1, eos_token_id=1, pad_token_id=0, **more))

    def text(i):
        return f"w{i % 30} w{(i * 3) % 30} w{i % 7}"

    def reward(completions, **named):
        return [float(len(one) % 5) for one in completions]

    def said(i):
        return [{"role": "user", "content": f"w{i % 30}"}, {"role": "assistant", "content": text(i)}]

    pairs = Dataset.from_list([{"prompt": f"w{i % 30} ", "chosen": text(i), "rejected": text(i + 5)} for i in range(64)])
    lines = Dataset.from_list([{"text": " ".join([text(i)] * (1 + i % 3))} for i in range(64)])
    prompts = Dataset.from_list([{"prompt": f"w{i % 30} w{i % 5}"} for i in range(64)])
    talks = Dataset.from_list([{"messages": said(i)} for i in range(64)])
    new().save_pretrained("model"), tokens.save_pretrained("model")
    name, place, options, given = {
        "sft": ("SFT", "", {"max_length": 16}, {"train_dataset": lines}),
        "packing": ("SFT", "", {"max_length": 16, "packing": True, "packing_strategy": "wrapped"}, {"train_dataset": lines}),
        "reward": ("Reward", "", {"max_length": 16}, {"train_dataset": pairs.remove_columns("prompt")}),
        "dpo": ("DPO", "", {"max_length": 16}, {"ref_model": new(), "train_dataset": pairs}),
        "orpo": ("ORPO", "orpo", {"max_length": 16}, {"train_dataset": pairs}),
        "cpo": ("CPO", "cpo", {"max_length": 16}, {"train_dataset": pairs}),
        "rloo": ("RLOO", "", {"num_generations": 2, "max_completion_length": 4}, {"train_dataset": prompts, "reward_funcs": reward}),
        "online dpo": ("OnlineDPO", "online_dpo", {"max_new_tokens": 4}, {"ref_model": new(), "train_dataset": prompts, "reward_funcs": reward}),
        "gkd": ("GKD", "gkd", {"max_new_tokens": 4, "max_length": 16, "lmbda": 0.0}, {"teacher_model": new(), "train_dataset": talks}),
        "kto": ("KTO", "", {"max_length": 16}, {"train_dataset": pairs}),
    }[kind]
    module = importlib.import_module(f"trl.experimental.{place}") if place and not hasattr(trl, f"{name}Trainer") else trl
    model = new(GPT2ForSequenceClassification, num_labels=1) if kind == "reward" else "model" if kind == "rloo" else new()
    arguments = getattr(module, f"{name}Config")(
        "out", per_device_train_batch_size=2, max_steps=4, learning_rate=1e-3, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", bf16=False, gradient_checkpointing=False, **options,
    )
    trainer = type("Mine", (TrainerMixin, getattr(module, f"{name}Trainer")), {})(model=model, args=arguments, processing_class=tokens, **given)
    trainer.train()
    print("BITS", hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())).hexdigest())
"""


@pytest.mark.parametrize("kind", ["sft", "packing", "reward", "dpo", "orpo", "cpo", "rloo", "online dpo", "gkd"])
def test_a_loss_of_the_batch_alone_has_the_same_bits_on_two_processes(tmp_path, kind):
    told = []
    for processes in ("1", "2"):
        ended = run_script(tmp_path, TRAIN, "-n", processes, "--lanes", "4", env={"KIND": kind})
        assert ended.code == 0, ended.err
        told.append(next(line for line in ended.out.splitlines() if line.startswith("BITS")))
    assert told[0] == told[1]


def test_kto_is_one_sentence(tmp_path):
    ended = run_script(tmp_path, TRAIN, "-n", "1", "--lanes", "4", env={"KIND": "kto"})
    assert ended.code == 2
    assert "TRL's KTOTrainer estimates its KL term" in ended.err
