"""The lanes that a script's source names are known before anything starts, where there is no doubt."""

from __future__ import annotations

import pytest

from samebits.launcher.script_source import lanes_named

CALL = "import samebits\n"


@pytest.mark.parametrize(
    ("source", "lanes"),
    [
        (CALL + "run = samebits.init(seed=0, lanes=4)", 4),
        ("from samebits import init\ndef main():\n    init(lanes=2)\nif __name__ == '__main__':\n    main()", 2),
        (CALL + "if __name__ == '__main__':\n    samebits.init(lanes=2)", 2),
        (CALL + "samebits.init()", None),
        (CALL + "samebits.init(lanes=args.lanes)", None),
        (CALL + "samebits.init(lanes=True)", None),
        (CALL + "samebits.init(lanes=2, strategy='pipeline')", None),
        (CALL + "samebits.init(lanes=2, **options)", None),
        (CALL + "samebits.init(lanes=2)\nsamebits.init(lanes=4)", None),
        (CALL + "if fast:\n    samebits.init(lanes=2)", None),
        ("other.init(lanes=2)", None),
        ("not Python", None),
    ],
)
def test_the_number_counts_only_where_the_call_is_sure_to_be_made_with_it(source: str, lanes: int | None) -> None:
    assert lanes_named(source) == lanes
