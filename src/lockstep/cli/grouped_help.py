"""Help of a command with many options: `--help` shows those used most, `--help-all` all of them in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from lockstep.cli.script_words import RemembersWords

HELP = "Help"
"""The group of `--help` and `--help-all`, which always come last."""


class GroupedHelp(RemembersWords):
    """Needs `most_used` and `groups`: names of parameters; an option in no group is shown in the last one."""

    most_used: Sequence[str] = ()
    groups: Mapping[str, Sequence[str]] = {}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """All, and `--help-all` behind `--help`."""
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        shown = {param.name or "": found for param in self.params if (found := param.get_help_record(ctx))}
        last = [found for param in self.get_params(ctx)[len(self.params) :] if (found := param.get_help_record(ctx))]
        if not ctx.meta.get(_ALL):
            with formatter.section("Options"):
                formatter.write_dl([shown[name] for name in self.most_used] + last)
            return
        groups = {title: [shown.pop(name) for name in names if name in shown] for title, names in self.groups.items()}
        for title, records in {**groups, HELP: [*shown.values(), *last]}.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _print_all(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


_ALL = "lockstep.help_all"
_HELP_ALL = click.Option(
    ["--help-all", "--help_all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show all options, in groups.",
)
