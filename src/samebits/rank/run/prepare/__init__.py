"""`run.prepare`: take what the script made, check it, let the strategy lay it out.

refuse what cannot be carried                        refusals
models, optimizers, loaders = sort what was given    preparation
every rank has the same                              -> strategy/agreement
strategy.adopt(models)
look at each step of the optimizers                  optimizers (under 16-mixed it may be skipped)
write what was decided                               ../decisions
"""
