"""Defaults of the project for `samebits run`: `[tool.samebits]` of the nearest pyproject.toml has defaults for them;
the command line beats these.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FILE = "pyproject.toml"
ALIKE = (("ranks", "nproc_per_node"), ("quiet", "verbose"))
"""Options of which the command line may have one: then the file's other one does not count."""


class TakesProjectDefaults(click.Command):
    """A command whose options have the defaults of the project in which it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not extra.get("resilient_parsing"):
            extra.setdefault("default_map", self._defaults(args))
        return super().make_context(info_name, args, parent, **extra)

    def _defaults(self, args: Sequence[str]) -> dict[str, Any]:
        try:
            path, table = nearest(Path.cwd())
        except OSError:
            # The working directory was removed, which the command itself reports.
            return {}
        options = [one for one in self.params if isinstance(one, click.Option)]
        by_name = {name.lstrip("-").replace("_", "-"): one for one in options for name in (*one.opts, str(one.name))}
        found = {}
        for name, value in table.items():
            option = by_name.get(name.replace("_", "-"))
            if option is None or option.name is None:
                raise click.UsageError(f"{path}: [tool.samebits] has {name!r}, which is not an option of samebits run.")
            found[option.name] = _checked(path, name, option, value)
        script = next((number for number, word in enumerate(args) if word.endswith(".py")), len(args))
        given = {one.name for one in options for word in args[:script] if word.partition("=")[0] in one.opts}
        for pair in ALIKE:
            if given & set(pair):
                found = {name: value for name, value in found.items() if name not in pair}
        return found


def _checked(path: Path, name: str, option: click.Option, value: object) -> object:
    """A value as the command line would give it."""
    if option.is_flag == isinstance(value, bool):
        if option.is_flag:
            return value
        if isinstance(value, list) and option.multiple and all(isinstance(one, str) for one in value):
            return value
        if isinstance(value, str | int | float):
            return [str(value)] if option.multiple else str(value)
    wanted = "true or false" if option.is_flag else "a list of words" if option.multiple else "a word or a number"
    raise click.UsageError(f"{path}: {name} in [tool.samebits] must be {wanted}.")


def nearest(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The table of the nearest pyproject.toml from `folder` upwards, and that file; an empty one where there is none.

    Raises:
        click.UsageError: when the file is no TOML, or the table is none.
    """
    for path in (place / FILE for place in (folder, *folder.parents)):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        try:
            table = tomllib.loads(text.decode()).get("tool", {}).get("samebits", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, AttributeError) as error:
            raise click.UsageError(f"{path} cannot be read: {error}.") from None
        if not isinstance(table, dict):
            raise click.UsageError(f"{path}: [tool.samebits] must be a table of options.")
        return path, table
    return folder / FILE, {}
