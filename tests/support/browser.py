"""Pages in a real browser: Chromium or Chrome of this machine, driven by playwright, without a network.

playwright and not selenium: it talks to the browser itself, where selenium needs a driver program of the same version.

    with browser() as chromium:
        page = Page(chromium, url)
        page.check()          # at two widths, light and dark
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage

PROGRAMS = ("chromium", "google-chrome", "google-chrome-stable", "chromium-browser")
WIDTHS = (1280, 390)
LIMIT_MS, LOOK_MS = 120_000, 50
TOO_FAINT = """() => {
  const canvas = new OffscreenCanvas(1, 1), context = canvas.getContext("2d", { willReadFrequently: true });
  const over = (colour, below) => {
    context.fillStyle = `rgb(${below})`; context.fillRect(0, 0, 1, 1);
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = rgb => rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility({ visibilityProperty: true }) || !element.getClientRects().length) continue;
    const chain = [];
    for (let one = element; one; one = one.parentElement) chain.unshift(getComputedStyle(one));
    let below = [255, 255, 255], opacity = 1;
    for (const style of chain) { below = over(style.backgroundColor, below); opacity *= style.opacity; }
    const style = chain.at(-1), ink = over(style.color, below).map((v, i) => v * opacity + below[i] * (1 - opacity));
    const [high, low] = [light(ink), light(below)].sort((a, b) => b - a), ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (isLarge ? 3 : 4.5)) found.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""Texts whose contrast to what lies below them is less than WCAG's level AA asks."""


def program() -> str:
    """The browser; empty where there is none."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), "")


def missing() -> str:
    """What the tests of pages lack, for the line that they are skipped."""
    if not program():
        return "no Chromium"
    return "" if find_spec("playwright") else "no playwright"


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """The browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program())
        try:
            yield chromium
        finally:
            chromium.close()


class Page:
    """A page, and what the browser complained about."""

    def __init__(self, chromium: Browser, url: str) -> None:
        self.complaints: list[str] = []
        self.driven = chromium.new_page(viewport={"width": WIDTHS[0], "height": 900})
        self.driven.set_default_timeout(LIMIT_MS)
        self.driven.on("console", self._note)
        self.driven.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.driven.goto(url)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    @property
    def text(self) -> str:
        return self.driven.inner_text("body")

    def until(self, expression: str, argument: object = None) -> None:
        """Wait until an expression of JavaScript is true. The page's own policy forbids playwright's way of waiting."""
        left = LIMIT_MS // LOOK_MS
        while not self.driven.evaluate(expression, argument):
            assert left, f"waited for {expression} with {argument} while it showed:\n{self.text}"
            left -= 1
            self.driven.wait_for_timeout(LOOK_MS)

    def wait_for(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until("text => document.body.innerText.includes(text)", text)

    def check(self) -> None:
        """No complaint, nothing wider than the window, no text too faint: at both widths, in light and dark."""
        for width in WIDTHS:
            self.driven.set_viewport_size({"width": width, "height": 844})
            # A chart follows a moment after the window.
            self.until("document.documentElement.scrollWidth <= innerWidth")
            for scheme in ("light", "dark"):
                self.driven.emulate_media(color_scheme=scheme)
                assert self.driven.evaluate(TOO_FAINT) == [], f"{width} {scheme}"
        self.driven.set_viewport_size({"width": WIDTHS[0], "height": 900})
        assert self.complaints == []

    def close(self) -> None:
        self.driven.close()
