"""The run that the user's script holds: where rank, strategy and feed meet.

    run = init(...)                              start: environment -> RunState -> Run
    model, optimizer, loader = run.prepare(...)  run (the facade) -> prepare/
    for step in run.steps(loader): ...           -> loop/; position/ knows where the script is
    run.track(average=average), run.state.best   -> saving/tracking, position/kept_values
    run.save_state(path)                         -> saving/
    finish()                                     ending

`run_state` is what all of these share: decisions, machinery, progress. `watch/` looks at what a script does in every
run, `witness/` records for `lockstep verify`.
"""
