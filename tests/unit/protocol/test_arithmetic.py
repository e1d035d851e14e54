"""Names of precisions and numerics, what they come to, and the scale of a loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.errors import UsageError
from samebits.protocol.arithmetic import ALIASES, ELSEWHERE, Arithmetic, allowed_named, arithmetic_text, precision_named
from samebits.rank.strategy.precision import GROWTH_INTERVAL, LARGEST, SMALLEST, LossScale, Scaling


def test_every_spelling_names_one_precision():
    spellings = [spelling for spelled in ALIASES.values() for spelling in spelled]
    assert len(spellings) == len(set(spellings))
    for precision, spelled in ALIASES.items():
        assert {precision_named(spelling.upper()) for spelling in spelled} == {precision}
    assert [precision_named(name) for name in (16, 32, torch.bfloat16, "bf16_mixed")] == [
        *("16-mixed", "32"),
        *("bf16-mixed", "bf16-mixed"),
    ]


@pytest.mark.parametrize("name", [*ELSEWHERE, 64, "bf17", "", None])
def test_another_precision_is_one_sentence_with_the_nearest_that_works(name):
    with pytest.raises(UsageError, match=r"^There is no precision .*(Use|Use one of 32, bf16-mixed, 16-mixed)"):
        precision_named(name)


def test_the_command_line_beats_the_script():
    script, line = Arithmetic("bf16", "fast"), Arithmetic(None, "exact")
    assert line.over(script).decided() == Arithmetic("bf16-mixed", "exact")
    assert Arithmetic().over(Arithmetic()).decided() == Arithmetic("32", "exact")
    with pytest.raises(UsageError, match='`numerics` must be "exact", "portable" or "fast"'):
        Arithmetic(None, "loose").decided()


def test_allowed_operators_are_names_and_belong_to_exact_numerics():
    assert Arithmetic(allow=("b", "a", "b")).decided().allow == ("a", "b")
    assert allowed_named("nll_loss2d, aten::cumsum") == ("aten::cumsum", "nll_loss2d")
    assert allowed_named(()) == ()
    for wrong in (",", [""], 3, None, ["a b"], [1], "--lanes"):
        with pytest.raises(UsageError, match="`allow` must be names of torch's operators"):
            allowed_named(wrong)
    with pytest.raises(UsageError, match=r'`allow` \(cumsum\) belongs to numerics="exact"'):
        Arithmetic(None, "fast", ("cumsum",)).decided()
    assert Arithmetic(None, "fast").over(Arithmetic(allow=("put",))).decided().allow == (), "for this once"
    assert Arithmetic(allow=("put",)).over(Arithmetic(allow=("cumsum",))).allow == ("put",)


def test_the_line_about_numerics_names_what_was_set():
    decided = {"precision": "32", "numerics": "exact", "seed": 3, "device": "cpu", "flags": {"cudnn.benchmark": False}}
    assert arithmetic_text(decided) == "exact: seed 3, deterministic algorithms"
    gpu = {**decided, "device": "cuda", "flags": {"cudnn.benchmark": False, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}}
    assert arithmetic_text(gpu) == (
        "exact: seed 3, deterministic algorithms, cudnn.benchmark off, CUBLAS_WORKSPACE_CONFIG=:4096:8"
    )
    assert arithmetic_text({**decided, "allow": ["cumsum"]}).endswith("deterministic algorithms but for cumsum")
    assert arithmetic_text({**decided, "numerics": "fast", "precision": "bf16-mixed"}) == (
        "fast, bf16-mixed: seed 3, any kernels and order of sums: bits may differ"
    )


@settings(max_examples=40, deadline=None)  # torch's first optimizer imports its compiler
@given(st.lists(st.booleans(), max_size=30), st.integers(1, 7))
def test_the_scale_moves_as_torchs_scaler_does(overflows, interval_left):
    theirs = torch.amp.GradScaler("cpu")
    theirs.load_state_dict({**theirs.state_dict(), "_growth_tracker": GROWTH_INTERVAL - interval_left})
    theirs.scale(torch.zeros(()))
    ours = Scaling(good_steps=GROWTH_INTERVAL - interval_left)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for overflow in overflows:
        parameter.grad = torch.tensor([float("inf") if overflow else 0.0])
        theirs.step(optimizer)
        theirs.update()
        ours = ours.after(overflow)
        assert SMALLEST <= ours.value <= LARGEST
        if ours.value > SMALLEST and theirs.get_scale() >= SMALLEST:
            assert (ours.value, ours.good_steps) == (theirs.get_scale(), theirs.state_dict()["_growth_tracker"])


def test_a_step_moves_the_scale_once_and_a_state_is_what_the_next_step_begins_with():
    scale = LossScale()
    scale.record(overflow=False)
    scale.record(overflow=True)
    saved = scale.state_dict()
    assert saved == {"scale": 2.0**15, "good_steps": 0, "skipped_in_a_row": 1}
    assert scale.value == 2.0**16, "until the step is over"
    scale.settle()
    assert (scale.value, scale.state_dict()) == (2.0**15, saved)
    scale.settle()
    assert scale.state_dict() == saved, "a step without an update changes nothing"
    resumed = LossScale()
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved


@pytest.mark.parametrize("state", [{}, {"scale": "a", "good_steps": 0, "skipped_in_a_row": 0}])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(UsageError, match="needs scale, good_steps and skipped_in_a_row"):
        LossScale().load_state_dict(state)
    with pytest.raises(UsageError, match="A loss scale must be between"):
        LossScale().load_state_dict({"scale": float("nan"), "good_steps": 0, "skipped_in_a_row": 0})


def test_a_half_loss_is_scaled_where_it_has_room():
    scaled = LossScale().scaled(torch.tensor(2.0, dtype=torch.float16))
    assert (scaled.item(), scaled.dtype) == (2.0**17, torch.float32)
    assert LossScale().scaled(torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float64
