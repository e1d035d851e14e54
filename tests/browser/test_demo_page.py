"""`samebits demo` as somebody sees and uses it: with the keyboard, with a slow press, on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.browser import Page, browser, missing
from tests.support.launching import start_python, until
from tests.support.promises import promise

# The whole demo is trained: five times the usual time, for a machine that is busy.
pytestmark = [pytest.mark.ranks, pytest.mark.compiles, pytest.mark.skipif(bool(missing()), reason=missing())]

NOTE_ALL = """() => {
  window.seen = [];
  const look = () => document.querySelectorAll(".rank").forEach((row, rank) => {
    const text = row.innerText.replace(/\\s+/g, " ");
    if (!window.seen.some(one => one[0] === rank && one[1] === text)) window.seen.push([rank, text]);
  });
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}"""
PASSED = "([rank, step]) => +document.querySelectorAll('.rank')[rank]?.innerText.match(/step ([0-9]+)/)?.[1] > step"
CAN_KILL = "rank => document.querySelector(`[aria-label='kill rank ${rank}']`)?.ariaDisabled === 'false'"
FOCUSED = "document.activeElement.ariaLabel"
HASHES = "[...document.querySelectorAll('.hashes b')].map(one => [one.innerText, one.getClientRects().length])"


def steps_of(seen: list[tuple[int, str]], rank: int) -> list[int]:
    return [int(found[1]) for number, text in seen if number == rank and (found := re.search(r"step (\d+)", text))]


@promise(
    "bad-input-and-what-a-person-is-told",
    "In a real browser a rank of the demo that is killed, by key or by a slow press, is shown dying; no step is shown as lost, and the focus stays",
)
def test_ranks_that_are_killed_by_key_and_by_a_slow_press_are_shown_dying_and_lose_no_step(tmp_path: Path) -> None:
    demo = start_python(tmp_path, "-m", "samebits", "demo", "-n", "2", "--no-browser")
    try:
        until(lambda: "http://" in demo.err, "the address of the page")
        with browser() as chromium:
            page = Page(chromium, re.search(r"http://\S+", demo.err)[0])
            assert "Two trainings of the same small network" in page.text
            assert "A rank is one process of a training." in page.text
            assert [page.text.count(number) for number in "①②③"] == [1, 1, 1]
            page.check()
            driven = page.driven
            driven.evaluate(NOTE_ALL)
            page.until(PASSED, [1, 4])
            page.until(CAN_KILL, 1)

            while driven.evaluate(FOCUSED) != "kill rank 1":
                driven.keyboard.press("Tab")
            driven.evaluate("window.kept = document.activeElement")
            page.until(PASSED, [1, 30])
            assert driven.evaluate("document.activeElement === window.kept"), "an update takes the focus away"
            driven.keyboard.press("Enter")
            page.until("window.kept.innerText === 'killed' && window.kept.ariaDisabled === 'true'")
            page.wait_for("killed by you at step")
            page.check()
            page.until(CAN_KILL, 1)
            assert driven.evaluate("document.activeElement === window.kept"), "a restart takes the focus away"

            page.until(PASSED, [0, 90])
            box = driven.locator("[aria-label='kill rank 0']").bounding_box()
            driven.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            driven.mouse.down()
            driven.wait_for_timeout(600)
            driven.mouse.up()
            page.until("document.querySelector('.rank').innerText.includes('killed by you at step')")

            page.wait_for("2 kills, the same weights to the last bit.")
            page.check()
            driven.set_viewport_size({"width": 390, "height": 844})
            (before, *_), (after, *_), *others = hashes = driven.evaluate(HASHES)
            assert before == after
            assert {(len(text), lines) for text, lines in hashes} == {(12, 1)}, "one line each, for the eye"
            assert len(others) <= 1
            assert page.text.count("✓") == len(hashes) + 3

            seen = [(rank, text) for rank, text in driven.evaluate("window.seen")]
            later = [one for one in seen if max(steps_of(seen[: seen.index(one)], 0), default=0) > 0]
            for rank in (0, 1):
                steps = steps_of(later, rank)
                assert steps == sorted(steps), "no step is shown as lost"
                assert any(number == rank and "restarting with the others" in text for number, text in seen)
        assert demo.process.wait(60) == 0, demo.err
        assert "(restart 1)" in demo.err
        assert "of 1000000" not in demo.err
    finally:
        demo.clean_up()
