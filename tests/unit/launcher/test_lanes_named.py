"""The lanes that a script's source names are known before anything starts, where there is no doubt."""

from __future__ import annotations

import pytest

from lockstep.launcher.script_source import lanes_named

CALL = "import lockstep\n"


@pytest.mark.parametrize(
    ("source", "lanes"),
    [
        (CALL + "run = lockstep.init(seed=0, lanes=4)", 4),
        ("from lockstep import init\ndef main():\n    init(lanes=2)\nif __name__ == '__main__':\n    main()", 2),
        (CALL + "if __name__ == '__main__':\n    lockstep.init(lanes=2)", 2),
        (CALL + "lockstep.init()", None),
        (CALL + "lockstep.init(lanes=args.lanes)", None),
        (CALL + "lockstep.init(lanes=True)", None),
        (CALL + "lockstep.init(lanes=2, strategy='pipeline')", None),
        (CALL + "lockstep.init(lanes=2, **options)", None),
        (CALL + "lockstep.init(lanes=2)\nlockstep.init(lanes=4)", None),
        (CALL + "if fast:\n    lockstep.init(lanes=2)", None),
        ("other.init(lanes=2)", None),
        ("not Python", None),
    ],
)
def test_the_number_counts_only_where_the_call_is_sure_to_be_made_with_it(source: str, lanes: int | None) -> None:
    assert lanes_named(source) == lanes
