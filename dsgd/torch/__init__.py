"""dsgd's algorithms in a training loop of the user's, over torch.distributed (docs/howto/own_loop.md).

model = dsgd.torch.distribute(model, optimizer, algo="diloco", options={"tau": 100})
for batch in loader:
    loss(model, batch).backward()
    model.step()
"""

from dsgd.engines.torch.group_channel import CommunicationFailed
from dsgd.torch.own_loop import DistributedModel, distribute
from dsgd.torch.step_optimizer import AlgorithmOptimizer

__all__ = ["AlgorithmOptimizer", "CommunicationFailed", "DistributedModel", "distribute"]
