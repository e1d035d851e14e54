"""`model_parallel` and `pipeline`: consecutive layers of one model on different ranks.

    until the first lane, every rank has the whole model     cut_at_first_call
    the first lane is watched, and decides the cut           cutting/
    from then on, a stage follows the user's own forward     runner
        other stages' layers are ghosts                      ghosts/
        it hands over at its edges                           gate, hand_over, links, results
    backward sends gradients the other way                   gradient_exchange
    parameters that several stages use are lent              loans, stand_ins

`staged_pass` goes through lanes one by one, `pipeline_pass` keeps all stages busy, `device_stages` is one process with
several GPUs. `result_tree`, `result_form` and `call_arguments` describe what calls take and return, `carried_streams`
the random streams that travel along; `clock` measures how long things take.
"""
