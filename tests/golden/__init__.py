"""Golden bits: what the examples, the recipes, the scenarios and saved states came to before, on this kind of machine.

    python -m tests.golden --check      compare with the record; a difference is an error
    python -m tests.golden              write the record of this kind of machine
    python -m tests.golden digits       these cases only, with --check or without

A quarter of an hour on two cores; `pytest tests/golden` does the same, where `thorough` tests run. A commit that
changes a record says why: nothing else may change bits. Where there is no record for this kind of machine, the rows
of a case (numbers of ranks, strategies) are compared with each other only, and the program says so.
"""
