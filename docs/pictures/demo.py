"""The README's picture: the loss of the demo, whose ranks were killed, over that of the same training undisturbed.

    python docs/pictures/demo.py                       draws demo.png and demo-dark.png from demo.json
    python docs/pictures/demo.py RUN UNDISTURBED       reads the two run folders of a `samebits demo` first

Needs matplotlib: pip install ".[plot]".
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from PIL import Image

HERE = Path(__file__).parent
LIGHT = {
    "ink": "#1f2430",
    "faint": "#6b7280",
    "kill": "#D55E00",
    "run": "#E69F00",
    "undisturbed": "#8ec1de",
    "line": "#e3e6ea",
    "page": "#ffffff",
}
DARK = {
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "kill": "#ff8a4c",
    "run": "#E69F00",
    "undisturbed": "#3f6f8f",
    "line": "#30363d",
    "page": "#0d1117",
}
"""On pages that are dark; the last is GitHub's own."""


def measured(run: Path, undisturbed: Path) -> dict[str, Any]:
    """Losses and hashes of both runs, and where ranks were killed."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {
        "run": of_run(run),
        "undisturbed": of_run(undisturbed),
        "kills": [[event["step"], event["rank"]] for event in events if event["event"] == "kill"],
    }


def of_run(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"ranks": summary["ranks"], "bits": summary["bits"], "losses": losses}


def draw(found: dict[str, Any], target: Path, colours: dict[str, str]) -> None:
    ink = colours["ink"]
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 18, "text.color": ink, "axes.labelcolor": ink})
    figure, axes = plt.subplots(figsize=(10, 6.6), dpi=110, facecolor=colours["page"])
    axes.set_facecolor(colours["page"])
    run, undisturbed, kills = found["run"], found["undisturbed"], found["kills"]
    steps = range(1, len(run["losses"]) + 1)
    axes.plot(
        steps,
        undisturbed["losses"],
        color=colours["undisturbed"],
        linewidth=7,
        label="undisturbed",
        solid_joinstyle="round",
    )
    axes.plot(steps, run["losses"], color=colours["run"], linewidth=2.2, label=f"{len(kills)} ranks killed")
    for step, rank in kills:
        axes.axvline(step, ymax=0.86, color=colours["kill"], linewidth=1.6, linestyle=(0, (4, 3)))
        axes.text(
            step,
            2.3,
            f"kill -9\nrank {rank}",
            color=colours["kill"],
            ha="center",
            va="center",
            fontsize=17,
            linespacing=1.1,
        )
    axes.set_yscale("log")
    axes.set_ylim(0.004, 4)
    axes.set_xlim(0, len(run["losses"]) + 1)
    axes.set_yticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel("training loss\n(lower is better)", linespacing=1.3)
    axes.grid(axis="y", color=colours["line"], linewidth=0.9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=ink)
    legend = axes.legend(
        loc="lower left",
        handlelength=1.4,
        fontsize=18,
        borderpad=0.1,
        framealpha=1,
        edgecolor="none",
        facecolor=colours["page"],
    )
    legend.set_zorder(5)
    figure.suptitle("Kill a rank. The bits stay.", x=0.03, y=0.985, ha="left", fontsize=28, fontweight="bold")
    rows = [("undisturbed", undisturbed), (f"{len(kills)} kills", run)]
    for (name, one), y in zip(rows, (0.1, 0.035), strict=True):
        ranks = f"{one['ranks']} rank{'s' if one['ranks'] > 1 else ''}"
        figure.text(0.035, y, f"{name}, {ranks}", fontsize=19, color=colours["faint"])
        figure.text(0.36, y, one["bits"].removeprefix("sha256:")[:28] + "…", family="DejaVu Sans Mono", fontsize=19)
    figure.subplots_adjust(left=0.135, right=0.985, top=0.89, bottom=0.28)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    picture.quantize(64, dither=Image.Dither.NONE).save(target, optimize=True)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="*", type=Path, help="the run folders of a demo: RUN UNDISTURBED")
    parser.add_argument("--target", type=Path, default=HERE / "demo.png")
    options = parser.parse_args()
    if options.folders:
        (HERE / "demo.json").write_text(json.dumps(measured(*options.folders)) + "\n")
    for target, colours in ((options.target, LIGHT), (options.target.with_stem(f"{options.target.stem}-dark"), DARK)):
        draw(json.loads((HERE / "demo.json").read_text()), target, colours)
