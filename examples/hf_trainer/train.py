"""A small language model trained by Trainer of Hugging Face, and what dsgd changes in it: the lines marked with <-.

torchrun --nproc-per-node=2 train.py --algo diloco --options '{"tau": 8}'
torchrun --nproc-per-node=2 train.py --algo ddp       # DistributedDataParallel, which `sync` equals
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import dsgd.torch  # <-

VOCABULARY, LENGTH = 16, 12


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Sequences of tokens that count up or down."""

    def __init__(self, count: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        starts = torch.randint(VOCABULARY, (count, 1), generator=source)
        strides = torch.randint(0, 2, (count, 1), generator=source) * 2 - 1
        self.tokens = (starts + strides * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class AlgorithmTrainer(Trainer):
    """A Trainer whose steps an algorithm of dsgd makes."""

    def __init__(self, *arguments: Any, algo: str, options: dict[str, Any], **named: Any) -> None:
        self.algo, self.options = algo, options
        super().__init__(*arguments, **named)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        local = super().create_optimizer()
        self.distributed = dsgd.torch.distribute(self.model, local, self.algo, self.options)  # <-
        self.optimizer = dsgd.torch.AlgorithmOptimizer(self.distributed)  # <- its step is the algorithm's
        return self.optimizer

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.prepare_model = lambda *_, **__: self.distributed  # <- in place of DistributedDataParallel


def arguments_of(folder: str, **named: Any) -> TrainingArguments:
    """Return the arguments that do not depend on who distributes the training. dsgd takes no scaler (fp16)."""
    common: dict[str, Any] = {"use_cpu": True, "ddp_backend": "gloo", "report_to": [], "disable_tqdm": True}
    common |= {"per_device_train_batch_size": 8, "lr_scheduler_type": "constant", "learning_rate": 0.003}
    common |= {"logging_steps": 1, "save_strategy": "no", "ddp_broadcast_buffers": False}
    return TrainingArguments(folder, **common | named)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algo", default="sync")
    parser.add_argument("--options", type=json.loads, default={})
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args = arguments_of(folder, max_steps=60)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=None,
        )
        model = LlamaForCausalLM(config)
        named: dict[str, Any] = {"train_dataset": Sequences(1024, seed=0), "eval_dataset": Sequences(64, seed=1)}
        if arguments.algo == "ddp":
            trainer = Trainer(model, args, **named)
            trainer.train()
            found = trainer.evaluate()["eval_loss"]
        else:
            trainer = AlgorithmTrainer(model, args, algo=arguments.algo, options=arguments.options, **named)
            trainer.train()
            with trainer.distributed.output():  # <- on every rank
                found = trainer.evaluate()["eval_loss"]
        if dist.get_rank() == 0:
            for entry in trainer.state.log_history:
                if "loss" in entry:
                    print(f"loss {entry['loss']:.9f}")
            print(f"test {found:.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
