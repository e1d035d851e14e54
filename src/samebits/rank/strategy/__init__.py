"""How a model is placed on ranks: one contract, and its implementations.

    choose_strategy(mesh, ...) -> Strategy                   choice
    strategy.adopt(models)                                   contract; agreement (do ranks have the same?), other_users
    for each step:  begin_pass, then for each lane
                    begin_lane, backward, end_lane;          replica/ is what the others build on
                    end_pass                                 norm, pass_loss, precision
    optimizer.step                                           optimizer_kinds

`delegating` is the base of strategies that change little of another one: `dp` (with `split_forward`), `hogwild`,
zero1/ and stages/. `contract` holds the loops that messages show.
"""
