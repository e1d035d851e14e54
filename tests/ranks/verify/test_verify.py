"""`samebits verify` on real tiny scripts with real processes: honest ones pass, and each planted mistake is named."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.verify.evidence import Kind
from samebits.verify.plain import Agreement, sentence
from tests.scripts.verifying import HONEST, SCRIPT, TOKENS, Verifier, named, nursery, verified
from tests.support.launching import killed_at_the_end
from tests.support.open_files import many_open_files
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery", "verified"]


@promise(
    "what-verify-proves",
    "`verify` ends with 0 only when it compared every bit and found no difference: each step, one left by "
    "`break` too, what changes behind the last step, and the models before the first",
    also=[
        "test_a_change_behind_the_last_step_is_compared_and_named",
        "test_a_step_whose_loop_is_left_is_compared",
        "test_models_that_are_made_by_the_number_of_ranks_are_named_before_the_first_step",
    ],
)
def test_an_honest_script_is_proved_by_the_command_on_1_2_3_and_4_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(**HONEST | {"lanes": 4}))
    command = [sys.executable, "-m", "samebits", "verify", "--json", "train.py", "--ranks", "1,2,3,4", "--steps", "3"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["proved"]
    assert told["steps"] == 3
    assert told["lanes"] == 4
    assert told["plain"]["agreement"] == "agrees"
    assert {row["kind"] for row in told["rows"]} >= {"loss", "gradient", "buffer", "parameter", "optimizer", "value"}
    assert "4 ranks … " in ended.stderr
    assert not told["folder"]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_noise_seeded_from_the_rank_is_named(verified: Verifier) -> None:
    item, step, cause = named(
        verified(
            before="noise = torch.Generator().manual_seed(run.rank)",
            lane="x = x + 0.1 * torch.randn(x.shape, generator=noise)",
        )
    )
    assert (item, step) == ("loss", 1)
    assert "lanes hand on noise (train.py:" in cause


@pytest.mark.thorough
def test_a_loss_multiplied_by_the_number_of_ranks_is_named_with_its_ratio(verified: Verifier) -> None:
    result = verified(loss="F.cross_entropy(model(x), y) * run.world_size")
    item, step, cause = named(result)
    assert (item, step) == ("loss", 1)
    assert result.difference.deviation.ratio == pytest.approx(2.0)
    assert "multiplied by the number of ranks" in cause


@pytest.mark.thorough
def test_batch_norm_statistics_broadcast_from_rank_0_are_named(verified: Verifier) -> None:
    item, step, cause = named(
        verified(
            lane="statistics = model[0](x).mean(0).detach()",
            after="model[1].running_mean.copy_(run.broadcast(statistics))",
        )
    )
    assert (item, step) == ("buffer 1.running_mean", 1)
    assert "BatchNorm statistics of rank 0" in cause


def test_a_shuffle_per_rank_is_refused_by_the_ranks_and_reported(verified: Verifier) -> None:
    result = verified(
        order="sampler=RandomSampler(inputs, generator=torch.Generator().manual_seed(run.rank))",
    )
    assert result.exit_code == 1
    assert result.failed.label == "2 ranks"
    assert "samples or their order are not the same on every rank" in result.failed.text


@pytest.mark.thorough
def test_a_learning_rate_scaled_by_the_ranks_is_named_with_both_values(verified: Verifier) -> None:
    item, step, cause = named(verified(lr="1e-2 * run.world_size"))
    assert (item, step) == ("parameter 0.weight", 1)
    assert "optimizer lr depends on the number of ranks: 0.01 with 1 and 0.02 with 2" in cause


@pytest.mark.thorough
def test_a_model_average_in_an_object_of_the_script_is_compared(verified: Verifier) -> None:
    before = (
        "class Average:\n"
        "    def __init__(self):\n"
        "        self.weights = {name: value.detach().clone() for name, value in model.named_parameters()}\n"
        "    def update(self, rate):\n"
        "        for name, value in model.named_parameters():\n"
        "            self.weights[name].lerp_(value.detach(), rate)\n"
        "average = Average()"
    )
    item, step, cause = named(verified(before=before, after="average.update(0.1 * run.world_size)"))
    assert item == "script average.weights.0.weight"
    assert step == 2
    assert "updated with values that depend on the ranks" in cause
    assert verified(before=before, after="average.update(0.1)").proved


@pytest.mark.thorough
def test_what_a_lane_leaves_in_a_variable_is_not_compared(verified: Verifier) -> None:
    lane = "batch = {'0.weight': x, '0.bias': y}; twin = copy.deepcopy(model)"
    assert verified(lane=lane).proved


@pytest.mark.thorough
def test_a_script_that_is_not_repeatable_with_itself_is_told_so(verified: Verifier) -> None:
    result = verified(
        before="import os; noise = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), 'big'))",
        lane="x = x + torch.randn(x.shape, generator=noise)",
    )
    assert "not repeatable: run again" in named(result)[2]


def test_a_summed_loss_is_named_by_the_row_plain(verified: Verifier) -> None:
    result = verified(loss="F.cross_entropy(model(x), y, reduction='sum')")
    assert result.same_bits
    assert result.exit_code == 1
    assert result.plain.agreement is Agreement.SUM
    assert result.plain.relative == pytest.approx(0.5, abs=0.01)
    assert "reduction='mean'" in sentence(result.plain)


@pytest.mark.thorough
def test_a_padded_token_mean_without_its_weight_is_named_by_the_row_plain(verified: Verifier) -> None:
    loss = "mean_of_tokens(model(x).unsqueeze(1).expand(-1, 7, -1), tokens)"
    slots = {
        "before": TOKENS,
        "norm": "nn.Identity()",
        "lane": "tokens = (y + 0)[:, None] * (torch.arange(7) <= y[:, None] * 2)",
    }
    result = verified(ranks=(1,), loss=loss, **slots)
    assert result.same_bits
    assert result.exit_code == 1
    assert result.plain.agreement is Agreement.WEIGHTS
    assert result.plain.found != pytest.approx(result.plain.used, abs=1e-3)
    assert sum(result.plain.found) == pytest.approx(1.0)
    assert "pass that number: run.backward(loss, weight=number)" in sentence(result.plain)
    assert verified(ranks=(1,), loss=f"{loss}, weight=int((tokens != 0).sum())", **slots).proved


def test_a_misuse_on_one_rank_already_is_misuse_of_verify_too(verified: Verifier) -> None:
    result = verified(lane="run.mean(1.0)")
    assert result.exit_code == 2
    assert "run.tally()" in result.failed.text


def test_the_failure_of_a_run_is_shown_with_the_scripts_frames_and_not_torchs(verified: Verifier) -> None:
    with many_open_files():
        text = verified(lane="model(x[:, :1])").failed.text
    assert "model(x[:, :1])" in text
    assert "frames inside torch" in text
    assert "site-packages/torch" not in text


@pytest.mark.thorough
def test_a_script_without_samebits_is_told_what_verify_needs(verified: Verifier, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("print('hello')\n")
    result = verified.of(script)
    assert result.exit_code == 2
    assert "run.prepare" in result.failed.text


@pytest.mark.thorough
def test_a_script_that_ends_early_is_proved_as_far_as_it_goes(verified: Verifier) -> None:
    result = verified(steps=9, epochs=1)
    assert result.proved
    assert result.num_steps == 2
    assert result.not_proved()[0] == "9 steps: the script ended after 2"


@pytest.mark.thorough
def test_without_lanes_in_the_script_there_are_four_or_the_most_ranks(verified: Verifier) -> None:
    result = verified(lanes=None)
    assert result.proved
    assert result.lanes == 4
    assert all(any(row.key == kind for row in result.rows) for kind in (Kind.BUFFER, Kind.VALUE))


def test_ctrl_c_ends_verify_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(**HONEST | {"epochs": 10**6}))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "samebits", "verify", "--ranks", "1,2", "--steps", "1000000", "train.py"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with killed_at_the_end(command, cwd=tmp_path, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        assert any(line.startswith("plain … ") for line in process.stderr), "behind notes about this system"
        assert process.stderr.readline().startswith("plain, 1 lane … ")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    last = r'stopped by Ctrl-C( in the run ".+")?: nothing is proved; no process and no file of the runs is left'
    assert re.fullmatch(last, said.splitlines()[-1])
    assert not list(temporary.glob("samebits-verify-*"))
