"""`single` and `ddp`: every rank holds the model; gradients of lanes are added in the tree's order.

adopt(models):        parameters and buffers move into flat memory      arena, memory, buffers
begin_pass(cut)
  begin_lane(l):      gradients go into a buffer                        lanes, gradient_buffers
    backward(loss):   weighted; a complete bucket may leave early       reduction
  end_lane():         its buffers are noted                             buffer_pass
                      of embeddings only the touched rows               sparse_embedding
end_pass():           one frame from each rank, the same conclusion     pass_report
                      sums over ranks -> p.grad                         reduction, gradient_buffers
"""
