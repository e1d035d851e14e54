"""The run that the user's script holds: where rank, strategy and feed meet.

    run = init(...)                              start: environment -> parts -> Run
    model, optimizer, loader = run.prepare(...)  run (the facade) -> prepare/
    for step in run.steps(loader): ...           -> loop/; position/ knows where the script is
    run.save_state(path)                         -> saving/
    finish()                                     ending

`parts` is what all of these share. `watch/` looks at what a script does in every run, `witness/` records for `lockstep verify`.
"""
