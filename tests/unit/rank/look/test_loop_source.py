"""What the source of one loop says of a name: syntax alone."""

import ast
import textwrap
from pathlib import Path

import pytest

from samebits.rank.look import source
from samebits.rank.look.source import Word, assigned_first, decides, read_behind, uses, writes_uncounted

LOOP = "for step in steps:\n    for x, y in step:\n        pass\n    loss = 1\n"


@pytest.mark.parametrize(
    ("behind", "left"),
    [
        ("print(step.loss)", {"step"}),
        ("for x, y in others:\n    f(x, y)", set()),
        ("loss = loss + 1", {"loss"}),
        ("loss += 1", {"loss"}),
        ("loss: int = 2\nprint(loss)", set()),
        ("[x for x in others]", set()),
        ("(y := 3)\nprint(y)", set()),
        ("for x in x:\n    pass", {"x"}),
        ("print(other)", set()),
    ],
)
def test_names_that_are_read_first_behind_the_loop_are_left(behind, left, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(LOOP + behind)
    code = compile(file.read_text(), str(file), "exec")
    assert read_behind(code, 1) == left


@pytest.mark.parametrize(
    ("body", "always", "where_read"),
    [
        ("a = 1\nb = a", {"a", "b"}, set()),
        ("b = a\na = 1", {"b"}, set()),
        ("if x: a = 1\nb = a", {"b"}, set()),
        ("if x: a = 1\nelse: a = 2\nb = a", {"a", "b"}, set()),
        ("for c in d: a = c", {"a", "c"}, set()),
        ("while x: a = 1", set(), {"a"}),
        ("while True:\n    a = 1\n    if a: break\nb = a", {"a", "b"}, set()),
        ("a += 1", set(), set()),
        ("with f() as a: b = a", {"a", "b"}, set()),
        ("if x:\n    a = f(); b = a[0]\nelse:\n    c = 1", set(), {"a", "b", "c"}),
        ("if x:\n    for a, b in c: a.add_(b)", set(), {"a", "b"}),
        ("with x:\n    if y: a = 1\n    b = a", {"b"}, set()),
        ("try:\n    a = 1; b = a\nexcept E as e: c = e", set(), {"a", "b", "c"}),
        ("try:\n    a = 1\nexcept E: a = 2\nb = a", {"a", "b"}, set()),
        ("try: a = f()\nexcept E: pass\nb = a", {"b"}, set()),
        ("if x: continue\na = 1\nb = a", set(), {"a", "b"}),
        ("for c in d:\n    if c: break\n    a = 1\nb = a", {"b", "c"}, set()),
        ("if x: a = 1\nif x: b = a", set(), {"b"}),
        ("f(lambda a: a[0])\na = 1", {"a"}, set()),
        ("f(lambda: a)\na = 1", set(), set()),
        ("b = [a for a in c]\na = 1", {"a", "b"}, set()),
        ("b = a if x else 0\na = 1", {"b"}, set()),
        ("x and (a := 1)\nb = a", {"b"}, set()),
        ("match x:\n    case [a]: b = a\n    case _: pass", set(), {"b"}),
    ],
)  # fmt: skip
def test_names_that_a_turn_reads_only_where_it_has_assigned_them(body, always, where_read):
    loop = ast.parse(f"for step in steps:\n{textwrap.indent(body, '    ')}").body[0]
    found = {name: sure for name, sure in assigned_first(loop).items() if name != "step"}
    assert found == dict.fromkeys(always, True) | dict.fromkeys(where_read, False)


@pytest.mark.parametrize(
    ("line", "is_read"),
    [
        ("a += 1", False),
        ("a = a + loss", False),
        ("a.append(loss)", False),
        ("self.a['x'].update(loss)", False),
        ("print(f'{a:.2f}')", False),
        ("run.log(a=sum(a) / len(a))", False),
        ("a = time.time(); b = time.time() - a", False),
        ("b = a.pop()", True),
        ("a.step()", True),
        ("loss = loss * a", True),
        ("if a: pass", True),
        ("if a % 10 == 0: print(b)", False),
        ("if a % 10 == 0:\n    if b: run.log(loss=b)", False),
        ("if a % 10 == 0: b = 1", True),
        ("if a % 10 == 0: print(b)\nelse: c = 1", True),
        ("f(a)", True),
        ("b = a.append(1)", True),
    ],
)
def test_what_is_only_added_to_or_shown_is_not_read(line, is_read):
    assert uses(Word("a"), ast.parse(line).body).is_read is is_read


def test_names_and_attributes_are_told_apart_and_an_average_is_not_only_added_to():
    code = ast.parse("self.a = 2 * self.a\nb.update(a)\nc.update(1)").body
    assert uses(Word("a", (ast.Name,)), code[:1]).line == 0
    assert uses(Word("a", (ast.Attribute,)), code).is_read
    assert uses(Word("c", adds=False), code).is_read
    assert not uses(Word("c"), code).is_read


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("p.data.mul_(2)", True),
        ("p.data = other", True),
        ("p.data[0] = 1", True),
        ("p.numpy()[0] = 1", True),
        ("a = torch.from_numpy(b)", True),
        ("p.set_(q)", True),
        ("from torch.utils.data import DataLoader", False),
        ("torch.utils.data.random_split(a, b)", False),
        ("a = p.data.mean()", False),
        ("a = p.detach().numpy().mean()", False),
    ],
)
def test_writes_that_torch_does_not_count_are_found_in_the_text(line, writes):
    assert writes_uncounted(ast.parse(line)) is writes


def test_what_cannot_be_read_or_is_too_long_has_no_syntax(tmp_path, monkeypatch):
    file = tmp_path / "train.py"
    file.write_text("a = 1\n" * 10)
    monkeypatch.setattr(source, "MOST_BYTES", 8)
    assert source.tree(str(file)) is None
    assert source.tree(str(tmp_path / "none.py")) is None
    (tmp_path / "wrong.py").write_text("for")
    assert source.tree(str(tmp_path / "wrong.py")) is None


@pytest.mark.parametrize(
    ("turn", "does"),
    [
        ("n += 1", False),
        ("n = n + 1", False),
        ("n += 1\nif n >= 9: break", False),
        ("if n < start: continue", False),
        ("if n % 9 == 0:\n    path = os.path.join(out, f'at-{n}')\n    a.save_state(path)\n    log.info(path)", False),
        ("if n % 9 == 0 and main: log_validation(model, n)", False),
        ("a.log({'loss': loss}, step=n)", False),
        ("bar.set_postfix(step=n)", False),
        ("total += loss.item()\nif n % 9 == 0:\n    print(total / 9)\n    total = 0", False),
        ("if (n + 1) % 4 == 0:\n    opt.step()\n    opt.zero_grad()", False),
        ("if n % 9 == 0:\n    model.eval()\n    evaluate(model, n)\n    model.train()", False),
        ("if n > 20: loss = loss + 1\na.backward(loss)", True),
        ("if n % 3 == 0:\n    loss = loss + z\na.backward(loss)", True),
        ("if n == 20: model[2].p = 0.5", True),
        ("if n % 4 == 0: target.load_state_dict(model.state_dict())", True),
        ("loss = loss * (1 + n)", True),
        ("adjust_rate(optimizer, n)", True),
        ("loss = loss if n > 9 else 2 * loss", True),
    ],
)
def test_a_count_of_batches_that_only_decides_when_to_save_to_show_and_to_stop_decides_nothing(turn, does):
    assert (
        decides(Word("n", (ast.Name,)), ast.parse(f"while True:\n{textwrap.indent(turn, '    ')}").body[0].body) is does
    )


def test_a_source_that_is_nested_too_deeply_counts_as_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"for n in range(3):\n    y = {'+'.join(['n'] * 900)}\nprint(y)\n")
    assert read_behind(compile(path.read_text(), str(path), "exec"), 1) == {""}
