"""A command whose options stand before SCRIPT or right behind it; what follows is the script's own."""

from __future__ import annotations

import click

from lockstep.cli.words import own_first


class OptionsAroundScript(click.Command):
    """Takes its options before SCRIPT and right behind it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option)]
        valued = {name for option in options if not option.is_flag for name in option.opts}
        flags = {name for option in options if option.is_flag for name in option.opts}
        return super().parse_args(ctx, own_first(args, valued, flags))
