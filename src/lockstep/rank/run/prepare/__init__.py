"""`run.prepare`: take what the script made, check it, let the strategy lay it out.

    models, optimizers, loaders = sort what was given    preparation, late
    every rank has the same                              -> strategy/agreement
    strategy.adopt(models)
    look at each step of the optimizers                  preparation, overflow (16-mixed skips)

`overflow` chooses what forward passes compute in.
"""
