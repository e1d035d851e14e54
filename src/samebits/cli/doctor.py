"""`samebits doctor`: from the command line to a report and its exit code."""

from __future__ import annotations

import json
import os
import sys

import click

from samebits.protocol.installation import VERSION

EPILOG = """\b
ok: nothing to do; note: works, but could be better; problem: would keep a run
from working. The fix is below the row.

\b
Exit code: 0; 1 when there is a problem."""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def doctor(as_json: bool) -> None:
    """Check this machine: versions, driver, devices, cores, backends, limits, leftovers."""
    from samebits.cli.program import check_here
    from samebits.cli.under_way import UnderWay, screen
    from samebits.launcher.doctor.examination import examine

    check_here()
    under_way = UnderWay(is_quiet=as_json)
    under_way.begin("importing torch")
    report = examine(os.environ, VERSION)
    under_way.end()
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        report.show(screen())
    sys.exit(0 if report.healthy else 1)
