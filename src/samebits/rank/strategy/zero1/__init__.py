"""`zero1`: ddp, but each rank updates a share of the parameters and keeps only that share's optimizer state.

before the engine:  ranks compare gradients' presence and groups' numbers   update_agreement
                    the groups' lists now hold this rank's pieces           share, spread_state (who has which)
optimizer.step()    the user's own optimizer, on pieces                     -
after the engine:   all ranks see the new values                            update_agreement, node_shared_parameters
                    the lists hold parameters again                         share
state_dict():       the pieces of all ranks, put together                   spread_state, state_assembly
"""
