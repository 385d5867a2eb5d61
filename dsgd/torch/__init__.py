"""dsgd's algorithms in a training loop of the user's, over torch.distributed (docs/howto/own_loop.md).

model = dsgd.torch.distribute(model, optimizer, algo="diloco", options={"tau": 100})
for batch in loader:
    loss(model, batch).backward()
    model.step()

How it works. The module stays the user's: no parameter gets another storage, other strides or another value than the
optimiser or the algorithm gives it. The parameters are the truth, and dsgd has copies of them:

- g, the gradients, are buckets (`flat.py`). Hooks copy each gradient into its bucket as soon as the backward pass has
  accumulated it. `parameter.grad` is then the view of the bucket, as in DistributedDataParallel with
  `gradient_as_bucket_view`. After the step the parameters have no gradient. What has no gradient rests, as in torch.
- If the algorithm asks for a mean gradient, each bucket is summed as soon as it is complete (`overlapped_mean.py`).
  There is one sequence of sums for each step, the same on every rank: a rank that comes to `step()` without it makes
  it there. It ends with the sum of who has a gradient, so that a parameter rests if it has none on any rank.
- x, the parameters as the algorithm's vector, is made when the algorithm first asks for it, and never for `sync`. From
  then on it is read from the parameters before the algorithm goes on and after each local step, and written to them
  if the algorithm has changed it. An algorithm that has not seen x cannot be disturbed by a change of what is trained:
  for others, such a change is an error.

The algorithm begins with the first forward pass that trains, so that weights loaded until then count. All that is
refused, is refused in `refused.py`.
"""

from dsgd.engines.torch.group_channel import CommunicationFailed
from dsgd.torch.own_loop import DistributedModel, distribute
from dsgd.torch.step_optimizer import AlgorithmOptimizer

__all__ = ["AlgorithmOptimizer", "CommunicationFailed", "DistributedModel", "distribute"]
