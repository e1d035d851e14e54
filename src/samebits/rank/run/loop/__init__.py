"""The loop that the script writes: epochs, steps, lanes, evaluations.

    for step in run.steps(loader):                   one step for each global batch                training
                                                     samples and order agreed on and checked       epoch
        for batch in step:                           the lanes of this rank                        step
            run.backward(loss)
        optimizer.step()                             after the pass has ended
    for batch in loader:                             plain iteration: whole batches, dealt         evaluation
        tally.add(loss=loss)                         sums with the bits of one rank                tally
    run.gather(rows)                                 rows in data-set order                        tally
    run.mean(x), run.log(x=x)                        numbers over ranks                            collectives

`lane_sum` is for losses over all lanes. `rows` has what ranks report in the frame of a pass; who looks is told by
`rank.position.observers`.
"""
