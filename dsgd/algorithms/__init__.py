"""One file per paper. Each holds a frozen dataclass of options whose `train` reads like the paper."""
