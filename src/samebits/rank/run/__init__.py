"""The run that the user's script holds: where data, strategy and checkpoint meet.

    run = init(...)                              start: what was given -> decisions -> assembly -> Run
    model, optimizer, loader = run.prepare(...)  run (the facade) -> prepare/
    for step in run.steps(loader): ...           -> loop/; position/ knows where the script is
    run.track(average=average), run.state.best   -> checkpoint/parts/tracking, position/kept_values
    run.save_state(path)                         -> checkpoint/store/save
    finish()                                     ending

`run_state` is what all of these share: its config, its components, and `loop_state`. `components.states` is what the loop
calls where a state may be saved. `rank/checks` looks at what a script does in every run, `rank/recording` records for
`samebits verify`.
"""
