"""Lock-step algorithms over a process group of torch.distributed, whoever computes the gradients."""
