"""What listens in any Python that a user's command starts: hashes of all that its optimizers update, step by step.

    how it gets there: PYTHONPATH, then            site/sitecustomize.py
    another commit's modules instead of these      moved
    when torch has been imported                   arrival
    steps, and what is recorded in each            witness
    names of parameters, without the script's help names
    hashes, and lines of the evidence              evidence
    each operator of one step                      operators

Runs in: a process of the user's own, with its own torch (tried: 2.12, 2.13); samebits need not be installed there. So these files need
the standard library and torch only, and import each other by relative names.
"""
