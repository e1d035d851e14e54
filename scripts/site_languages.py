"""What the site does about languages; a hook of mkdocs (see mkdocs.yml).

`name.zh.md` is the Chinese page of `name.md` or `name.en.md`. It says so in `<html lang>`, the theme's own words are
Chinese, and the menu has the Chinese section in the place of *Start*. The switch in the header leads to the same page in
the other languages or, where there is none, to their quick start. On a translated page site.css marks links to English.
"""

from __future__ import annotations

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation, StructureItem
from mkdocs.structure.pages import Page
from site_pages import outside_fences

LANGUAGES = {"en": "English", "zh": "中文", "ko": "한국어"}
"""As the switch names them. Each has a page `quickstart`."""
LINK = re.compile(r"(?<!!)\[(?!English\])(?:[^\[\]]|\[[^\[\]]*\])*\]\((?P<target>[^()\s:#]+\.md)(?:#[^()\s]*)?\)")
ALTERNATE = re.compile(r' *<link rel="alternate" href="[^"]*" hreflang="[^"]*">\n')


def parted(uri: str) -> tuple[str, str]:
    """`quickstart.zh.md` as `("quickstart", "zh")`; a page whose name says no language is English."""
    name, _, language = uri.removesuffix(".md").rpartition(".")
    return (name, language) if language in LANGUAGES else (uri.removesuffix(".md"), "en")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let pages that are none, such as 404.html, have the switch too."""
    config.extra["alternate"] = _switch({})
    return config


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:  # noqa: ARG001
    """Give each page a previous and a next one of its own language only."""
    for page in nav.pages:
        if page.previous_page and _language(page.previous_page) != _language(page):
            page.previous_page = None
        if page.next_page and _language(page.next_page) != _language(page):
            page.next_page = None
    return nav


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Mark a translated page's links to English ones, and let the search show it behind these."""
    own = _language(page)
    if own == "en":
        return markdown
    page.meta["search"] = {"boost": 0.01}

    def marked(link: re.Match[str]) -> str:
        return f"{link[0]}{{ hreflang=en }}" if parted(link["target"])[1] == "en" else link[0]

    return outside_fences(markdown, lambda text: LINK.sub(marked, text))


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Navigation) -> dict[str, Any]:
    """The theme in the page's language, the menu for it, and a switch to the same page in others."""
    name, own = parted(page.file.src_uri)
    same = {
        language: each.url for each in nav.pages for other, language in [parted(each.file.src_uri)] if other == name
    }
    config.theme["language"] = own
    config.extra["alternate"] = _switch(same)
    page.meta["is_translated"] = len(same) > 1
    kept = {own} if own == "en" else {own, "en"}
    menu = [item for item in nav.items if _language(item) in kept and (own == "en" or item.title != "Start")]
    menu.sort(key=lambda item: _language(item) != own)
    context["nav"] = Navigation(menu, nav.pages)
    return context


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001
    """No page says that it is in another language where only the quick start is."""
    return output if page.meta["is_translated"] else ALTERNATE.sub("", output)


def _switch(same: dict[str, str]) -> list[dict[str, str]]:
    return [
        {"lang": language, "name": name, "link": same.get(language, f"quickstart.{language}.html")}
        for language, name in LANGUAGES.items()
    ]


def _language(item: StructureItem) -> str:
    """Of a page, or of a section by its first page."""
    return parted(item.file.src_uri)[1] if isinstance(item, Page) else _language((item.children or [])[0])
