"""`model_parallel` and `pipeline`: consecutive layers of one model on different ranks.

    until the first lane every rank has the whole model      cut_at_first_call
    the first lane is watched, and the cut follows           cutting/
    from then on a stage follows the user's own forward      runner
        layers of others are ghosts                          ghosts/
        at its edges it hands over                           gate, hand_over, links, results
    backward sends gradients the other way                   gradient_exchange
    parameters that several stages use are lent              loans, stand_ins

`staged` goes through lanes one after the other, `pipeline` keeps all stages busy, `several_devices` is one process with
several GPUs. `result_tree`, `result_form` and `call_arguments` are what calls take and give; `carried_streams` the random
streams that travel along; `clock` says what took how long.
"""
