"""`verify --where` of scripts with lanes: what differs with the number of ranks is named down to the operator, lane by lane."""

from pathlib import Path

import pytest

from samebits.launcher.trials.trials import Program, Trials
from samebits.verify.lane_operators import first_place, places_of
from samebits.verify.repeat.operators import Parting, Why
from tests.scripts.verifying import HONEST, SCRIPT, Verifier, nursery, verified
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
__all__ = ["nursery", "verified"]

NEARLY = """
@torch.library.custom_op("mine::nearly", mutates_args=())
def nearly(x: torch.Tensor) -> torch.Tensor:
    return torch.nextafter(x, x + 1) if run.rank else x.clone()
nearly.register_autograd(lambda context, gradient: gradient)
"""
SHAKY_BACKWARD = """
class Shaky(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        return gradient * (1 + 1e-6 * run.rank)
"""


def found(verified: Verifier, **slots: object) -> tuple[Parting, int]:
    """Where it parts, and the number of the script's line."""
    result = verified(steps=2, where=True, **{"lanes": 4} | slots)
    assert result.exit_code == 1
    assert isinstance(result.operator, Parting), result.operator
    return result.operator, int(result.operator.line.rpartition(":")[2])


def line_of(text: str, verified: Verifier) -> int:
    lines = (verified.folder / "train.py").read_text().splitlines()
    [number] = [number for number, line in enumerate(lines, 1) if text in line]
    return number


@promise(
    "what-verify-proves",
    "Where numbers of ranks differ, `--where` names the first operator that differs with its line, lane by lane",
)
def test_a_number_that_depends_on_the_ranks_is_named_with_both_values(verified: Verifier) -> None:
    parting, line = found(verified, lane="x = x + (run.world_size - 1) * 1e-7")
    assert (parting.why, parting.name, parting.values) == (Why.ARGUMENT, "aten.add.Tensor", ("0.0", "1e-07"))
    assert (parting.lane, parting.lanes, parting.step, parting.is_backward) == (0, (0, 1, 2, 3), 1, False)
    assert parting.shapes == ("float32[6, 6]",), "lane 0 has six of 22 samples"
    assert line == line_of("run.world_size - 1", verified)


def test_an_operator_that_computes_otherwise_is_named_with_its_ulp_and_the_first_lane(verified: Verifier) -> None:
    parting, line = found(verified, before_loader=NEARLY, lane="x = nearly(x)")
    assert (parting.why, parting.name, parting.ulps) == (Why.OPERATOR, "mine.nearly.default", 1)
    assert (parting.lane, parting.lanes) == (2, (2, 3)), "the lanes of rank 1"
    assert line == line_of("x = nearly(x)", verified)


@pytest.mark.thorough
def test_an_order_that_depends_on_the_rank_is_named_where_the_operators_part(verified: Verifier) -> None:
    lane = "x = x + 0.1 * (x.flip(1) if run.rank else x).sum(1, keepdim=True)"
    parting, line = found(verified, lane=lane)
    assert (parting.why, parting.name, parting.other_name, parting.lane) == (
        Why.SEQUENCE,
        "aten.sum.dim_IntList",
        "aten.flip.default",
        2,
    )
    assert line == line_of("x.flip(1)", verified)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slots", "lane"),
    [
        (
            {
                "before": "noise = torch.Generator().manual_seed(run.rank)",
                "lane": "x = x + torch.randn(x.shape, generator=noise)",
            },
            2,
        ),
        ({"lane": "torch.manual_seed(run.rank)"}, 2),
        ({"lane": "run.rank and torch.rand(1)"}, None),
    ],
    ids=["a generator of its own", "dropout behind a seed", "a draw more"],
)
def test_random_numbers_of_the_rank_are_no_operators_fault(
    verified: Verifier, slots: dict[str, object], lane: int | None
) -> None:
    parting, _ = found(verified, **slots)
    assert parting.why is (Why.GENERATOR if lane is not None else Why.SEQUENCE)
    assert parting.lane == (2 if lane is None else lane)


@pytest.mark.thorough
def test_what_parts_in_a_backward_only_is_named_there(verified: Verifier) -> None:
    parting, _ = found(verified, before_loader=SHAKY_BACKWARD, loss="F.cross_entropy(Shaky.apply(model(x)), y)")
    assert (parting.why, parting.name, parting.is_backward, parting.lane) == (
        Why.ARGUMENT,
        "aten.mul.Tensor",
        True,
        2,
    )
    assert parting.values == ("1.0", "1.000001")


@pytest.mark.thorough
def test_what_lanes_hand_on_is_named_as_a_value_no_operator_made(verified: Verifier) -> None:
    parting, line = found(verified, before="seen = []", lane="seen.append(float(x.sum())); x = x - len(seen)")
    assert (parting.why, parting.name, parting.values) == (Why.ARGUMENT, "aten.sub.Tensor", ("3", "1"))
    assert (parting.lane, line) == (2, line_of("seen.append", verified))


@pytest.mark.thorough
def test_writes_in_place_and_through_views_are_seen_where_they_happen(verified: Verifier) -> None:
    lane = "x = x.clone(); x[:, 1:].view(-1, 5).t().mul_(1 + 1e-6 * run.rank)"
    parting, line = found(verified, lane=lane)
    assert (parting.name, parting.lane, line) == ("aten.mul_.Tensor", 2, line_of("mul_", verified))


@pytest.mark.thorough
def test_the_update_is_named_where_all_lanes_agree(verified: Verifier) -> None:
    lane = "optimizer.param_groups[0]['lr'] = 1e-2 * (1 + 1e-3 * run.world_size)"
    parting, line = found(verified, lane=lane)
    assert (parting.why, parting.lane, parting.lanes) == (Why.ARGUMENT, None, ())
    assert line == line_of("optimizer.step()", verified)


HONEST_ONES = {
    "a plain loop": {},
    "two passes": {"after": "\n        for x, y in step:\n            run.backward(F.cross_entropy(model(x), y))"},
    "compiled": {"before": "compiled = torch.compile(model)", "loss": "F.cross_entropy(compiled(x), y)"},
    "over the batch": {"lane": "pass"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", HONEST_ONES)
def test_an_honest_script_does_the_same_in_each_lane_on_any_number_of_ranks(
    kind: str, verified: Verifier, tmp_path: Path
) -> None:
    text = SCRIPT.format(**HONEST | {"lanes": 4} | HONEST_ONES[kind])
    if kind == "over the batch":
        loop = "        for x, y in step:\n            pass\n            run.backward(F.cross_entropy(model(x), y))\n"
        whole = "        step.backward(lambda batch: model(batch[0]), over_batch=lambda all_: (all_ @ all_.T).square().mean())\n"
        assert loop in text
        text = text.replace(loop, whole)
    script = tmp_path / "train.py"
    script.write_text(text)
    program = Program(script, None, (), threads=1, device="cpu")
    wanted = {"steps": 1, "operators_of": 1}
    with Trials(program, lambda *_: None, verified.nursery) as trials:
        runs = [trials.run(f"{ranks} ranks", ranks, 4, wanted) for ranks in (1, 2)]
        assert [one.outcome.exit_code for one in runs] == [0, 0], runs[0].outcome.block
        ours, theirs = map(places_of, runs)
        trials.remove()
    assert {lane for passes, lane in ours if passes == 1} == {-1, 0, 1, 2, 3}
    assert first_place(ours, theirs, 1) is None
    names = {one.name for parts in ours.values() for part in parts for one in part.operators}
    assert ("inductor_compiled_code" in names) == (kind == "compiled")
