"""Several nodes: where each one is.

what the command line says                      told
what a launcher says                            launchers/, facts
both, as one decision                           choice -> place
"""
