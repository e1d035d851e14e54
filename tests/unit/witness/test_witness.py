"""What is recorded of a script's optimizers, whatever kind they are, and where a step ends."""

import importlib
import json
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

from samebits.witness.evidence import digest
from samebits.witness.witness import Wanted, Witness


class Around(torch.optim.Optimizer):
    """An optimizer around another one, as look-ahead is."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


@pytest.fixture
def recorded(tmp_path):
    """Runs a training loop until the witness ends it; the lines of its file."""

    def record(train, steps=3, **wanted):
        torch.manual_seed(0)
        witness = Witness(Wanted(str(tmp_path), steps, **wanted))
        witness.listen()
        try:
            with pytest.raises(SystemExit):
                train()
        finally:
            witness.stop()
        [path] = tmp_path.glob("rank-*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    return record


def loop(make, model=None, closure=False, turns=99):
    model = model or nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    made = make(model)
    optimizers = made if isinstance(made, list) else [made]
    x = torch.randn(16, 4)

    def backward():
        for one in optimizers:
            one.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(turns):
        if not closure:
            backward()
        for one in optimizers:
            one.step(*[backward] * closure)


def steps_of(lines):
    return {line["step"]: line["items"] for line in lines if "step" in line}


ADAM = partial(torch.optim.AdamW, lr=1e-2)
MAKERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "fused": lambda model: ADAM(model.parameters(), fused=True),
    "foreach": lambda model: ADAM(model.parameters(), foreach=True),
    "for loop": lambda model: ADAM(model.parameters(), foreach=False),
    "groups": lambda model: ADAM([{"params": [one]} for one in model.parameters()]),
    "two in turn": lambda model: [ADAM(model[0].parameters()), ADAM(model[2].parameters())],
    "one per parameter": lambda model: [ADAM([one]) for one in model.parameters()],
    "around another": lambda model: Around(ADAM(model.parameters())),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_step_has_its_gradients_parameters_and_buffers(recorded, kind):
    lines = recorded(lambda: loop(MAKERS[kind]))
    found = steps_of(lines)
    assert list(found) == [1, 2, 3]
    assert lines[-1]["end"] == 3
    assert lines[-1]["cut"]
    for items in found.values():
        kinds = {item.partition(" ")[0] for item in items}
        assert kinds >= {"gradient", "parameter", "buffer"}
        assert "gradient Sequential.0.weight" in items
    assert any(item.startswith("initial ") for item in found[1])
    assert any(item.startswith("optimizer") for item in found[1])
    assert not any(item.startswith("optimizer") for item in found[2])
    values = [items["parameter Sequential.0.weight"] for items in found.values()]
    assert len({found[1]["initial Sequential.0.weight"], *values}) == 4, "each update changes it"


def test_an_optimizer_that_asks_for_gradients_itself(recorded):
    found = steps_of(
        recorded(lambda: loop(lambda model: torch.optim.LBFGS(model.parameters(), max_iter=2), closure=True))
    )
    assert list(found) == [1, 2, 3]
    assert "parameter Sequential.0.weight" in found[1]


def test_an_optimizer_that_is_made_anew_in_each_step_ends_steps_too(recorded):
    def train():
        model = nn.Linear(4, 2)
        for _ in range(9):
            loop(MAKERS["sgd"], model, turns=1)

    assert list(steps_of(recorded(train))) == [1, 2, 3]


def test_scaled_gradients_are_recorded_where_they_are_applied(recorded):
    def train():
        model = nn.Linear(4, 2)
        optimizer, scaler = MAKERS["sgd"](model), torch.amp.GradScaler("cpu")
        for _ in range(9):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()

    assert list(steps_of(recorded(train))) == [1, 2, 3]


def test_the_same_loop_has_the_same_bits_and_one_with_another_number_has_not(recorded, tmp_path):
    first = steps_of(recorded(lambda: loop(MAKERS["fused"])))
    next(tmp_path.glob("rank-*")).unlink()
    assert steps_of(recorded(lambda: loop(MAKERS["fused"]))) == first
    next(tmp_path.glob("rank-*")).unlink()
    other = steps_of(recorded(lambda: loop(lambda model: ADAM(model.parameters(), fused=True, eps=1e-7))))
    assert next(step for step in first if other[step] != first[step]) == 1


def test_a_step_s_operators_are_those_from_the_update_before_to_its_own(recorded, tmp_path):
    recorded(lambda: loop(MAKERS["sgd"]), operators_of=2)
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    names = [line["name"] for line in lines]
    assert sum(name.startswith("aten.native_batch_norm_backward") for name in names) == 1
    assert sum(name.startswith(("aten.native_batch_norm.", "aten._native_batch_norm_legit.")) for name in names) == 1
    assert any(line["backward"] for line in lines)
    assert all(line["line"].rpartition(":")[0] == __file__ for line in lines if "backward" in line["name"])


def test_operators_are_those_of_the_process_that_trains_and_not_when_batches_arrive(recorded, tmp_path):
    def train():
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(32, 4))
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork"):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()

    recorded(train, steps=2, operators_of=1)
    # The loader has ended its workers.
    [path] = tmp_path.glob("operators-*.jsonl")
    names = [json.loads(line)["name"] for line in path.read_text().splitlines()]
    assert "aten.addmm.default" in names
    assert "aten.add_.Tensor" in names
    assert not [name for name in names if name.startswith("aten.set_")]


def test_memory_that_nobody_wrote_to_is_no_input(recorded, tmp_path):
    def train():
        weight = nn.Parameter(torch.empty(8).uniform_())
        optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            weight.grad = torch.empty_like(weight).fill_(1.0)
            optimizer.step()

    recorded(train, operators_of=1)
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    [drawn] = [line for line in lines if line["name"].startswith("aten.uniform_")][:1]
    assert drawn["in"][0] == "unwritten"
    assert drawn["in"][-1].startswith("generator ")
    assert "unwritten" not in drawn["out"]


def test_writes_in_place_and_views_are_recorded_by_what_they_show(recorded, tmp_path):
    def train():
        weight = nn.Parameter(torch.ones(4, 3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            weight.grad = torch.zeros(4, 3)
            weight.grad[1:].t().add_(2.0)
            torch.add(weight.grad, 1.0, out=weight.grad)
            optimizer.step()

    recorded(train, operators_of=1)
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    [inside] = [line for line in lines if line["name"] == "aten.add_.Tensor"][:1]
    assert inside["in"][0] == digest(torch.zeros(3, 3))
    assert inside["out"] == [digest(torch.full((3, 3), 2.0))] * 2, "the result, and the argument that it wrote to"
    [out] = [line for line in lines if line["name"] == "aten.add.out"][:1]
    rows = torch.tensor([[1.0] * 3, *[[3.0] * 3] * 3])
    assert out["out"] == [digest(rows)] * 2


def test_a_generator_is_an_input_only_of_what_draws_from_it(recorded, tmp_path):
    own = torch.Generator().manual_seed(3)

    def train():
        weight = nn.Parameter(torch.ones(64))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            torch.nn.functional.dropout(weight, 0.5)
            torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 4, 8)] * 3)
            weight.grad = torch.randn(64, generator=own)
            optimizer.step()

    before = digest(own.get_state())
    recorded(train, operators_of=1)
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    drawn: dict[str, str] = {}
    for line in lines:
        if line["in"] and line["in"][-1].startswith("generator "):
            drawn.setdefault(line["name"], line["in"][-1])
    assert set(drawn) == {"aten.bernoulli_.float", "aten.randn.generator"}
    assert drawn["aten.randn.generator"] == f"generator {before}"
    assert any("scaled_dot_product" in line["name"] for line in lines)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("step", [1, 2])
def test_a_compiled_region_stays_compiled_and_is_one_operator(recorded, tmp_path, step):
    compile_ = torch.compile

    def train():
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 2))
        optimizer, compiled = MAKERS["sgd"](model), torch.compile(model)
        while True:
            optimizer.zero_grad()
            compiled(torch.ones(16, 4)).square().mean().backward()
            optimizer.step()

    try:
        recorded(train, operators_of=step)
    finally:
        torch.compile = compile_
        settings = importlib.import_module("torch._inductor.config")
        settings.wrap_inductor_compiled_regions = False
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    regions = [line for line in lines if line["name"] == "inductor_compiled_code"]
    # The first step is known to be over when the second one updates.
    assert [line["backward"] for line in regions] == [False, True] * (2 if step == 1 else 1)
    assert any(one.startswith("generator ") for one in regions[0]["in"]), "of dropout"
    assert not any("addmm" in line["name"] or "batch_norm" in line["name"] for line in lines)
    assert all(line["line"].rpartition(":")[0] == __file__ for line in regions)


def test_memory_of_an_operator_s_own_is_no_result(recorded, tmp_path):
    """The workspace of a recurrent layer is written in part; the rest is what was there before."""

    def train():
        model = nn.LSTM(4, 8, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            optimizer.zero_grad()
            model(torch.ones(2, 3, 4))[0].sum().backward()
            optimizer.step()

    recorded(train, operators_of=1)
    lines = [json.loads(line) for line in (tmp_path / "operators-00000.jsonl").read_text().splitlines()]
    layers = [line for line in lines if line["name"].startswith("aten.mkldnn_rnn_layer")]
    if not layers:
        pytest.skip("this torch has no such layer of oneDNN")
    assert [line["out"][3] for line in layers if "backward" not in line["name"]] == ["unwritten"] * 2


def test_what_an_optimizer_changes_behind_the_step_of_its_base_class_is_recorded(recorded):
    class Shifted(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            with torch.no_grad():
                weight.zero_()

    weight = nn.Parameter(torch.ones(3))

    def train():
        optimizer = Shifted([weight], lr=0.1)
        while True:
            weight.grad = torch.ones(3)
            optimizer.step()

    assert steps_of(recorded(train))[3]["parameter unnamed.1"] == digest(torch.zeros(3))


def test_conjugated_and_negated_gradients_are_recorded_by_their_values(recorded):
    weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    part = nn.Parameter(torch.ones(3))

    def train():
        optimizer = torch.optim.SGD([weight, part], lr=0.1)
        while True:
            weight.grad = torch.full((3,), 1 + 2j, dtype=torch.complex64).conj()
            part.grad = weight.grad.imag
            optimizer.step()

    items = steps_of(recorded(train))[1]
    assert items["gradient unnamed.1"] == digest(torch.full((3,), 1 - 2j, dtype=torch.complex64))
    assert items["gradient unnamed.2"] == digest(torch.full((3,), -2.0))


@pytest.mark.parametrize("length", [10, 5000, 40_000, 40_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_a_digest_changes_with_each_bit_and_with_the_order(length, dtype):
    torch.manual_seed(0)
    values = (
        torch.randint(0, 2, (length,)).to(dtype) if dtype is torch.bool else torch.randint(-9, 9, (length,)).to(dtype)
    )
    values[:2] = torch.tensor([0, 1]).to(dtype)
    found = {digest(values)}
    for place in (0, 1, length // 2, length - 1):
        other = values.clone()
        other.view(torch.uint8)[place * values.itemsize] ^= 1
        found.add(digest(other))
    swapped = values.clone()
    swapped[:2] = values[[1, 0]]
    assert len(found | {digest(swapped)}) >= (6 if length > 10 else 5)
    assert digest(values.clone()) == digest(values)


def test_signs_that_flip_together_are_seen():
    values = torch.ones(1 << 15)
    for places in ([0, 2], [0, 4, 8, 12], list(range(0, 1 << 15, 2)), list(range(1 << 15))):
        other = values.clone()
        other[places] *= -1
        assert digest(other) != digest(values)


def test_a_digest_does_not_depend_on_where_a_tensor_lies():
    memory = torch.randn(1 << 16).to(torch.bfloat16)
    for offset in range(9):
        part = memory[offset : offset + 50_000]
        assert digest(part) == digest(part.clone()) == digest(part.clone().reshape(2, -1).t().contiguous().t())


@pytest.mark.parametrize(
    ("words", "without"),
    [
        ("torch.manual_seed(0)", []),
        ("torch.manual_seed(0); random.random()", ["random"]),
        ("torch.manual_seed(0); numpy.random.rand()", ["numpy"]),
        ("torch.manual_seed(0); random.seed(1); random.random(); numpy.random.seed(1); numpy.random.rand()", []),
        ("seed = random.randint(1, 10**9); random.seed(seed); torch.manual_seed(seed)", ["torch", "random"]),
        ("", ["torch"]),
    ],
)
def test_generators_without_a_seed_are_those_that_were_used_and_differ(words, without):
    script = f"""
import json, random, numpy, torch
from samebits.witness.witness import Seeds
seeds = Seeds()
{words}
seeds.mark()
print(json.dumps(seeds.drawn()))
"""
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert [name for name in runs[0] if runs[0][name] != runs[1][name]] == without
