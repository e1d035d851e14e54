"""A command whose options stand before SCRIPT or right behind it; what follows is the script's own.

What looks like one of its options there is noted, unless `--` says that it is meant so.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from lockstep.cli.words import own_first, strays
from lockstep.launch.legacy_local_rank import source_of


class OptionsAroundScript(click.Command):
    """Takes its options before SCRIPT and right behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        flags = {name for option in options if option.is_flag for name in option.opts}
        rest = super().parse_args(ctx, own_first(args, valued, flags))
        if "--" not in args and not ctx.resilient_parsing:
            note_strays(self, ctx, ctx.params["args"])
        return rest


def note_strays(command: click.Command, ctx: click.Context, words: Sequence[str]) -> None:
    """Say on standard error which of the script's words look like options of `command`."""
    names = [name for option in command.get_params(ctx) if isinstance(option, click.Option) for name in option.opts]
    source = source_of(ctx.params["script"], bool(ctx.params["module"])) if words else None
    for sentence in strays(words, names, source):
        click.echo(f"note: {sentence}", err=True)
