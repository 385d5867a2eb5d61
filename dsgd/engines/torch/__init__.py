"""Lock-step algorithms over a process group of torch.distributed, with gradients from any source."""
