"""What is kept out of a published record, and what is no secret."""

import pytest

from samebits.verify.record.private import Self, texts_in, why_private, why_text

ME = Self("/home/jane", "jane", ("larch07.cluster.example", "larch07"))


@pytest.mark.parametrize(
    "words",
    [
        "--api-key abc",
        "--api_key=abc",
        "--apiKey abc",
        "--hf-token abc",
        "--token=abc",
        "--password 1234",
        "--wandb.secret x",
        "WANDB_API_KEY=abc",
        "trainer.hub_token=abc",
        "--note AKIAIOSFODNN7EXAMPLE",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "ghp_abcdefghijklmnopqrst0123456789abcdef",
        "github_pat_11ABCDEFG0abcdefghijklmnop",
        "0123456789abcdef0123456789abcdef01234567",
        "--id=0123456789abcdef0123456789abcdef",
        "wandb_v1_abcdefghijklmnop",
        "sk-proj-abcdefghijklmnop",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "dGhpcyBpcyBhIHNlY3JldCBrZXkgMTIzNDU2Nzg5MA==",
        "--x=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
        "https://jane:pass@example.org/data",
        "xoxb-123456789012-abcdef",
    ],
)
def test_what_looks_like_a_secret_is_kept_back(words):
    assert "looks like a secret" in why_private(words.split(), ME)
    value = words.split()[-1].partition("=")[2] or words.split()[-1]
    assert value not in why_private(words.split(), ME), "it is not told itself"


@pytest.mark.parametrize(
    "words",
    [
        "/data/x",
        "--data /data/x",
        "--data=/data/x",
        "--data=~/x",
        "~jane/x",
        "a,/b",
        "root:/x",
        "file:///x",
        "C:\\Users\\x",
        r"\\server\x",
        "//server/x",
    ],
)
def test_absolute_paths_are_kept_back(words):
    assert why_private(words.split(), ME) in ("an absolute path", "your user name")


@pytest.mark.parametrize("word", ["jane", "runs/jane/1", "--who=Jane", "larch07", "larch07.cluster.example:29500"])
def test_the_user_and_the_machine_are_not_named(word):
    assert why_private([word], ME) in ("your user name", "this machine's name")


def test_root_and_localhost_are_nobodys_names():
    assert why_private(["--root", "data", "localhost"], Self("/root", "root", ("localhost",))) == ""


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--lr 0.1 --epochs 10",
        "--key-dim 64 --num-tokens 512 --tokenizer gpt2",
        "--max_tokens=100 --keys a,b --monkey 1",
        "--data data/ImageNet2012/train --out runs/2024-11-29_long-name-of-a-run",
        "--model meta-llama/Llama-2-7b-chat-hf-finetuned-on-our-own-data",
        "--model google/flan-t5-base-samsum-v2-2024",
        "configs/experiment_number_17_with_a_very_long_name.yaml",
        "s3://bucket/data https://example.org/data.tar",
        "--ratio 1/2 --range 1:10 --opt.betas=[0.9,0.999] --x={a:1}",
        "--janet larch0 --use-janes-method",
        "--dtype=torch.bfloat16 --target-modules q_proj,k_proj,v_proj",
    ],
)
def test_usual_arguments_are_no_secrets(words):
    assert why_private(words.split(), ME) == ""


def test_texts_are_found_in_each_depth():
    assert [*texts_in({"a": ["b", {"c": 1}], "d": None})] == ["a", "b", "c", "d"]
    assert why_text("/home/jane/x", ME)
