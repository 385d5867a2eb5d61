"""dsgd's algorithms in a training loop of the user's, over torch.distributed (docs/howto/own_loop.md).

model = dsgd.torch.distribute(model, optimizer, algo="diloco", options={"tau": 100})
for batch in loader:
    loss(model, batch).backward()
    model.step()
"""

from dsgd.process_groups.channel import CommunicationFailed
from dsgd.torch.optimizer import AlgorithmOptimizer
from dsgd.torch.own_loop import DistributedModel, distribute

__all__ = ["AlgorithmOptimizer", "CommunicationFailed", "DistributedModel", "distribute"]
