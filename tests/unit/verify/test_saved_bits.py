"""The file of `verify --save`: what comes back, and what is refused."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.cli.start_verify import bits_files
from samebits.errors import UsageError
from samebits.launcher.trials.trials import Program
from samebits.protocol.recording import AT_END
from samebits.verify.evidence import End, Evidence, ItemAtStep
from samebits.verify.saved_bits import (
    _CHECKSUM,
    SavedBits,
    _checksum,
    decode,
    fact_differences,
    facts,
    name_of,
    read_saved,
    write_saved,
)
from tests.support.promises import promise

FACTS = {"torch": "2.13.0", "cpu": "AVX2", "lanes": 4, "threads": 1, "batch_size": 64}
PLACES = st.builds(
    ItemAtStep, st.sampled_from([0, 1, 2, AT_END]), st.sampled_from(["loss", "parameter a.b", "value é"])
)
VALUES = st.sampled_from(["0" * 32, "0" * 32 + " nan", "0x1.8p+1", "'text'"])


def saved(**changed: object) -> SavedBits:
    evidence = Evidence(({ItemAtStep(1, "loss"): "0x1.8p+1"},), End(over=True, reached=True), {})
    return SavedBits(**{"script": "train.py", "args": (), "facts": FACTS, "steps": 20, "evidence": evidence} | changed)


@given(st.dictionaries(PLACES, VALUES), st.booleans(), st.floats(0, allow_infinity=False))
def test_what_is_written_comes_back(recorded: dict[ItemAtStep, str], reached: bool, norm: float) -> None:
    norms = dict.fromkeys(recorded, norm)
    bits = saved(evidence=Evidence((recorded,), End(over=True, reached=reached), norms), args=("--lr", "0.1"))
    assert decode(bits.encode(), "bits.json") == bits


@promise("what-verify-proves", "A changed byte in a file of saved bits is noticed")
@given(st.integers(0), st.binary(min_size=1, max_size=1))
def test_a_byte_that_is_another_one_is_noticed(position: int, byte: bytes) -> None:
    text = saved().encode()
    position %= len(text)
    changed = text[:position] + byte + text[position + 1 :]
    found, problem = None, ""
    try:
        found = decode(changed, "bits.json")
    except UsageError as error:
        problem = str(error)
    assert found == saved() or problem.startswith("bits.json ")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"\xff\xfe", b"null", b'{"format": "samebits-bits", "version": "x"}']
)
def test_something_else_is_one_sentence(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "bits.json"
    file.write_bytes(text)
    with pytest.raises(UsageError, match=r"is damaged, or was not written by `samebits verify --save`"):
        read_saved(file)
    with pytest.raises(UsageError, match="it is a folder, not a regular file"):
        read_saved(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        *({"facts": facts} for facts in ({}, [], None, {"lanes": 4}, {"lanes": "4", "threads": 1})),
        *({"facts": {"lanes": 4, "threads": threads}} for threads in (0, -1, "1", True, 1.5, math.inf, 1 << 40)),
        *({"steps": steps} for steps in (0, -1, None, "3", True)),
    ],
)
def test_a_file_made_by_hand_whose_counts_are_none_is_one_sentence(changed: dict[str, object]) -> None:
    body = {**json.loads(saved().encode()), **changed}
    body.pop(_CHECKSUM)
    with pytest.raises(UsageError, match=r"^bits\.json is damaged"):
        decode(json.dumps({**body, _CHECKSUM: _checksum(body)}).encode(), "bits.json")


def test_a_fifo_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bits.json")
    with pytest.raises(UsageError, match="it is a FIFO, not a regular file"):
        read_saved(tmp_path / "bits.json")
    with pytest.raises(UsageError, match=r"--save .* cannot be written"):
        bits_files(str(tmp_path / "bits.json"), None)


def test_a_newer_version_is_named() -> None:
    body = json.loads(saved().encode()) | {"version": 9}
    with pytest.raises(UsageError, match=r"written by a newer samebits \(format 9; this one reads format 1\)"):
        decode(json.dumps(body).encode(), "bits.json")


def test_the_file_is_replaced_as_a_whole_and_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "bits.json"
    file.write_text("old")
    write_saved(file, saved().encode())
    assert read_saved(file) == saved()
    assert [path.name for path in tmp_path.iterdir()] == ["bits.json"]
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        write_saved(tmp_path / "missing" / "bits.json", saved().encode())


def test_conditions_that_are_others_are_told_with_both_values() -> None:
    program = Program(Path("src/train.py"), None, ("--lr", "1"), threads=1, device="cpu")
    assert name_of(program) == "train.py"
    assert fact_differences(saved(args=("--lr", "1")), program.args, FACTS) == []
    here = FACTS | {"torch": "2.14.0", "cpu": "AVX512", "batch_size": 32, "numerics": "exact"}
    assert fact_differences(saved(), program.args, here) == [
        "torch 2.13.0 there, 2.14.0 here",
        "CPU capability AVX2 there, AVX512 here",
        "batch 64 there, 32 here",
        "numerics unknown there, exact here",
        "arguments none there, --lr 1 here",
    ]


def test_the_facts_of_a_run_name_the_cpu() -> None:
    decided = {
        "fingerprint": {"torch": "2.13.0", "threads": 1},
        "arithmetic": {"precision": "32", "numerics": "exact"},
        "lanes": 4,
        "batch_size": 64,
        "seed": 0,
    }
    assert facts(decided) | {"cpu_model": ""} == {
        "torch": "2.13.0",
        "threads": 1,
        "cpu_model": "",
        "lanes": 4,
        "batch_size": 64,
        "seed": 0,
        "precision": "32",
        "numerics": "exact",
    }
