"""`samebits watch --web` and `samebits report` as somebody sees them: good runs, failed, hostile and half-written ones."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from samebits.show.live import LiveRun
from samebits.show.server import LivePage
from tests.support.browser import Page, browser, missing
from tests.support.launching import Finished, start, start_python, until, write_script
from tests.support.promises import promise

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(bool(missing()), reason=missing())]

MARKUP = "<img src=x onerror=window.broken=1><script>window.broken=1</script>"
NAME = "<img src=x onerror=window.broken=1>.py"
SCRIPT = f"""
    import sys, time, torch, samebits
    from pathlib import Path
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 240

        def __getitem__(self, index):
            while sys.argv[2] == "waits" and not Path("go").exists():
                time.sleep(0.01)
            time.sleep(0.03 if sys.argv[2] == "waits" else 0.003)
            return torch.full((4,), index / 240), torch.ones(1)

    run = samebits.init(seed=0, lanes=2, threads=1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Slow(), batch_size=4, shuffle=True))
    for _ in run.epochs(1):
        for step in run.steps(loader):
            step.backward(lambda batch: (model(batch[0]) - batch[1]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            run.log(**{{"loss": step.loss, "<img src=x onerror=window.broken=1>": step.number}})
            if sys.argv[2] == "fails" and step.number == 20:
                raise ValueError("{MARKUP}")
"""
UNBROKEN = "window.broken === undefined && !document.querySelector('img') && document.scripts.length === 2"
WORDS_OF_ONE_LINE = """() => [...document.querySelectorAll(".scroll td, .scroll th")].every(cell => {
  const range = document.createRange(), walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) for (const word of walker.currentNode.textContent.matchAll(/[\\w.]{1,12}(?=\\s|$)/g)) {
    range.setStart(walker.currentNode, word.index); range.setEnd(walker.currentNode, word.index + word[0].length);
    if (new Set([...range.getClientRects()].map(one => Math.round(one.top))).size > 1) return false;
  }
  return true;
})"""
EVENT_WIDTHS = "[...document.querySelectorAll('.events td:last-child')].map(one => one.clientWidth)"


def run_of(place: Path, name: str, *arguments: str, ranks: str = "1") -> Finished:
    write_script(place, SCRIPT, NAME)
    return start(place, "-n", ranks, "--name", name, NAME, *arguments).finish()


def report_of(place: Path, *runs: str) -> str:
    made = start_python(place, "-m", "samebits", "report", "-o", f"{runs[0]}.html", *runs)
    assert made.process.wait(60) == 0, made.err
    return (place / f"{runs[0]}.html").as_uri()


def test_a_live_page_says_in_words_what_the_ranks_wait_for(tmp_path: Path) -> None:
    write_script(tmp_path, SCRIPT, NAME)
    run = start(tmp_path, "-n", "2", "--name", "live", NAME, "0.1", "waits")
    until((tmp_path / "samebits-runs/live/events.jsonl").exists, "the run's folder")
    watch = start_python(tmp_path, "-m", "samebits", "watch", "--web", "--no-browser", "live")
    try:
        until(lambda: "http://" in watch.out, "the address of the page")
        with browser() as chromium:
            page = Page(chromium, re.search(r"http://\S+", watch.out)[0])
            page.wait_for("2 ranks: running")
            page.wait_for("The loss is drawn here from the first step on.")
            (tmp_path / "go").touch()
            page.wait_for("of a step’s time, the largest part")
            assert re.search(r"\bdata \d\d%", page.text), page.text
            assert "0 kills" not in page.text
            page.check()
            page.wait_for("starved-loader: The ranks wait for samples")
            page.wait_for("more loader workers (num_workers=)")
            page.wait_for("each once")
            page.check()
            assert page.driven.evaluate(UNBROKEN)
        assert run.finish().code == 0, run.err
    finally:
        run.clean_up()
        watch.clean_up()


@promise(
    "bad-input-and-what-a-person-is-told",
    "Demo, live page, report and comparison have no error, no overflow and a contrast of 4.5 in a real browser, 1280 and 390 pixels wide, light and dark; what is hostile or half written is shown as text",
    also=[
        "test_a_live_page_says_in_words_what_the_ranks_wait_for",
        "test_half_written_hostile_and_absent_runs_have_a_page",
    ],
)
def test_reports_say_how_a_run_ended_and_a_comparison_keeps_its_words_whole(tmp_path: Path) -> None:
    assert run_of(tmp_path, "good", "0.1", "ends").code == 0
    failed = run_of(tmp_path, "failed", "0.2", "fails")
    assert failed.code == 1
    with browser() as chromium:
        page = Page(chromium, report_of(tmp_path, "good"))
        assert "240 samples × 1 epoch" in page.text
        assert "0 kills" not in page.text
        assert page.driven.locator(".kind.end").evaluate("one => one.classList.contains('fails')") is False
        assert f"samebits verify --ranks 1,2,4 --threads 1 '{NAME}' 0.1 ends" in page.text
        assert sys.executable not in page.text
        page.check()
        assert page.driven.evaluate(UNBROKEN)
        page.driven.emulate_media(color_scheme="light")
        page.driven.get_by_label("light or dark").click()
        assert page.driven.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
        page.close()

        page = Page(chromium, report_of(tmp_path, "failed"))
        block = page.driven.locator("section.bad").inner_text()
        for said in ("FAILED    rank 0", f"{NAME}:27", "Traceback", f"ValueError: {MARKUP}"):
            assert said in block, block
        assert page.text.index("FAILED") < page.text.index("last loss")
        assert page.driven.locator(".kind.end").evaluate("one => one.classList.contains('fails')")
        page.check()
        page.driven.set_viewport_size({"width": 390, "height": 844})
        assert min(page.driven.evaluate(EVENT_WIDTHS)) > 280, "not a word a line"
        assert page.driven.evaluate(UNBROKEN)
        page.close()

        page = Page(chromium, report_of(tmp_path, "good", "failed"))
        page.check()
        page.driven.set_viewport_size({"width": 390, "height": 844})
        assert page.driven.evaluate(WORDS_OF_ONE_LINE)
        assert page.driven.evaluate(UNBROKEN)


def test_half_written_hostile_and_absent_runs_have_a_page(tmp_path: Path) -> None:
    run_of(tmp_path, "failed", "0.2", "fails")
    runs = tmp_path / "samebits-runs"
    half = shutil.copytree(runs / "failed", runs / "half")
    (half / "summary.json").unlink()
    (half / "outcome.json").write_text('{"block": "' + MARKUP.replace('"', "") + '\\u001b[2J"')
    for name in ("events.jsonl", "metrics.jsonl", "decided.json"):
        text = (half / name).read_text()
        (half / name).write_text(text[: len(text) * 2 // 3])
    hostile = shutil.copytree(runs / "failed", runs / "hostile")
    (hostile / "outcome.json").write_text('{"block": "' + MARKUP + '\\u001b[2J"}')
    (hostile / "findings.jsonl").write_text(
        '{"finding": "straggler", "said": "' + MARKUP + '", "ranks": [0], "time": 1}\n'
        '{"finding": "' + MARKUP + '", "said": "x", "ranks": [0], "time": 1}\n'
    )
    with browser() as chromium:
        for name, words in (("half", "left without an end"), ("hostile", f"{MARKUP}\\x1b[2J")):
            page = Page(chromium, report_of(tmp_path, name))
            assert words in page.text
            page.check()
            assert page.driven.evaluate(UNBROKEN)
            page.close()
        for path, words in ((half, "left without an end"), (runs / "none", "The processes are starting…")):
            with LivePage(LiveRun(path).state) as served:
                page = Page(chromium, served.url)
                assert words in page.text
                page.check()
                assert page.driven.evaluate(UNBROKEN)
                page.close()
    refused = start_python(tmp_path, "-m", "samebits", "report", "none")
    assert refused.process.wait(60) == 2
    assert "There is no run none" in refused.err
