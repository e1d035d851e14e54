"""A rank of two that share a GPU is killed, with a model that people have: how long until the step that it was in is done."""

import json
import sys

from benchmarks.rank_program import measure_in_ranks


def main():
    model = sys.argv[1]
    told = {
        name: ns / 1e9 for name, ns in measure_in_ranks("lost", 2, ("--model", model), ("--device", "cuda")).items()
    }
    says = (
        f"{told['whole']:.2f} s until its step was done: {told['until_the_script_begins']:.2f} until the script began again, "
        f"{told['until_it_has_prepared']:.2f} until it had prepared (the first time {told['own_start']:.2f}); a step takes {told['step']:.2f}"
    )
    print(json.dumps({"says": says, "seconds": told}))


if __name__ == "__main__":
    main()
