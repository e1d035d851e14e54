"""`verify --save` and `--against`: the bits of another commit, another machine, another script."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from samebits.errors import UsageError
from samebits.verify.report import show
from samebits.verify.result import Result
from samebits.verify.saved_bits import decode
from tests.scripts.verifying import HONEST, SCRIPT, Verifier, nursery, verified
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery", "verified"]


def text_of(result: Result) -> str:
    out = io.StringIO()
    show(result, Console(file=out, width=1000))
    return out.getvalue()


def with_facts(file: Path, other: Path, **facts: object) -> Path:
    """The same bits under other conditions."""
    saved = decode(file.read_bytes(), str(file))
    changed = type(saved)(saved.script, saved.args, {**saved.facts, **facts}, saved.steps, saved.evidence)
    other.write_bytes(changed.encode())
    return other


@promise(
    "what-verify-proves",
    "`--save` and `--against` compare bits over commits and name the first step, tensor and layer that differ",
)
@pytest.mark.thorough
def test_the_bits_of_a_commit_are_saved_and_a_change_is_named(verified: Verifier, tmp_path: Path) -> None:
    bits = tmp_path / "bits.json"
    saved = verified(ranks=(1,), save=bits)
    assert saved.exit_code == 0
    assert f"The bits are in {bits}" in text_of(saved)
    assert json.loads(bits.read_text())["script"] == "train.py"

    same = verified(ranks=(1, 2), against=bits)
    assert same.exit_code == 0
    assert same.against is not None
    assert same.against.same
    assert len(same.rows[0].cells) == 3
    assert f"The same bits as in {bits}, over 3 steps." in text_of(same)

    refactored = verified(ranks=(1,), against=bits, before="loss_of = F.cross_entropy", loss="loss_of(model(x), y)")
    assert refactored.exit_code == 0

    changed = verified(ranks=(1, 2), against=bits, after="\n        if step.number == 2: model[4].bias.data += 1e-6")
    assert changed.exit_code == 1
    assert changed.same_on_all_ranks
    told = changed.as_json()
    assert told["against"]["same"] is False
    assert (told["difference"]["step"], told["difference"]["layer"]) == (2, "4")
    text = text_of(changed)
    assert "First difference: step 2, parameter 4.bias (layer 4): 1 rank against bits.json." in text
    assert "relative difference" in text
    assert "the gradients are the same, so the update has changed" in text


@promise("what-verify-proves", "`--against` blames other conditions before the script")
@pytest.mark.thorough
def test_other_conditions_are_said_and_blamed_before_the_script(verified: Verifier, tmp_path: Path) -> None:
    bits = tmp_path / "bits.json"
    verified(ranks=(1,), steps=2, save=bits)
    older = with_facts(bits, tmp_path / "older.json", torch="2.0.0")
    same = verified(ranks=(1,), steps=2, against=older)
    assert same.exit_code == 0
    assert "Conditions: torch 2.0.0 there, " in text_of(same)
    changed = verified(ranks=(1,), steps=2, against=older, lr="2e-2")
    assert changed.difference is not None
    assert changed.difference.cause.startswith("the conditions differ: torch 2.0.0 there")
    batch = verified(ranks=(1,), steps=2, against=bits, lanes=4)
    assert "lanes 2 there, 4 here" in text_of(batch)
    assert batch.exit_code == 1


@pytest.mark.thorough
def test_another_script_is_refused_unless_it_is_accepted(verified: Verifier, tmp_path: Path) -> None:
    bits, port = tmp_path / "bits.json", tmp_path / "port.py"
    verified(ranks=(1,), steps=1, save=bits)
    port.write_text(SCRIPT.format(**HONEST))
    with pytest.raises(UsageError, match=r"has the bits of train.py, not of port.py.*Add --accept script"):
        verified.of(port, (1,), 1, against=bits)
    assert verified.of(port, (1,), 1, against=bits, accepted=("script",)).exit_code == 0


@pytest.mark.thorough
def test_bits_that_depend_on_the_ranks_are_not_saved(verified: Verifier, tmp_path: Path) -> None:
    bits = tmp_path / "bits.json"
    result = verified(steps=1, save=bits, lr="1e-2 * run.world_size")
    assert result.exit_code == 1
    assert not bits.exists()
    assert f"{bits} was not written: the ranks have different bits." in text_of(result)
    with pytest.raises(UsageError, match="There are no bits to save"):
        verified(steps=1, save=bits, lanes="2, numerics='fast'")
