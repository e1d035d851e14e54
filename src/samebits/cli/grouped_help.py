"""Help in groups, with one spelling of each option; the other one (`--save_every`) works all the same."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import click

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""Of every command."""
HELP = "Help"
"""The group of `--help` and `--help-all`, which always come last; an option in no group is there too."""
_ALL = "samebits.help_all"


class GroupedHelp(click.Command):
    """A command with `groups` of names of parameters; with `most_used`, `--help` shows these, and `--help-all` the groups."""

    most_used: Sequence[str] = ()
    groups: Mapping[str, Sequence[str]] = {}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """All, and `--help-all` behind `--help` where that is short."""
        return [*super().get_params(ctx), *([_HELP_ALL] if self.most_used else [])]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        shown = {one.name or "": found for one in options if (found := _one_spelling(one).get_help_record(ctx))}
        last = [one.name or "" for one in self.get_params(ctx)[len(self.params) :]]
        groups: Mapping[str, Sequence[str]] = {"Options": (*self.most_used, *last)}
        if not self.most_used or ctx.meta.get(_ALL):
            grouped = {name for names in self.groups.values() for name in names}
            groups = {**self.groups, HELP if grouped else "Options": [name for name in shown if name not in grouped]}
        for title, names in groups.items():
            with formatter.section(title):
                formatter.write_dl([shown[name] for name in names if name in shown])


def _one_spelling(option: click.Option) -> click.Option:
    """The option without the spellings that torchrun has besides."""
    shown = copy.copy(option)
    shown.opts, shown.secondary_opts = (
        [one for one in names if "_" not in one] for names in (option.opts, option.secondary_opts)
    )
    return shown


def _print_all(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_HELP_ALL = click.Option(
    ["--help-all", "--help_all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show all options, in groups.",
)
