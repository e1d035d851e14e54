"""`model_parallel` and `pipeline`: consecutive layers of one model on different ranks.

    until the first lane, every rank has the whole model     cut_at_first_call
    the first lane is watched, and decides the cut           cutting/
    from then on, a stage follows the user's own forward     runner
        other stages' layers are ghosts                      ghost, meta_placeholder
        it hands over at its edges                           contract, hand_over, results
    backward sends gradients the other way                   hand_over
    parameters that several stages use are shared            tied_parameters

`passes` goes through lanes one by one, or keeps all stages busy; `device_stages` is one process with
several GPUs. `results` describes what calls take and return, `carried_streams`
the random streams that travel along; `clock` measures how long things take.
"""
