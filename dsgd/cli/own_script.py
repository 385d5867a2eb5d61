"""Write the use of a measured configuration in a training script of the user's: three lines, or a whole script."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from dsgd.record.safe_files import write_atomically
from dsgd.runner.configuration import configure, why_not
from dsgd.runner.values import ConfigError

IMPORT = "import dsgd.torch"
STEP = "model.step()  # after every backward(), in place of optimizer.step() and zero_grad()"
NO_OPTIONS = ("_target_", "name")
# dsgd's optimizer to torch's name and arguments, all of them, because torch's defaults differ
OPTIMIZERS = {
    "dsgd.optim.optimizer.SGD": ("SGD", ("lr", "momentum", "nesterov", "weight_decay")),
    "dsgd.optim.optimizer.AdamW": ("AdamW", ("lr", "betas", "eps", "weight_decay")),
}


def show_use(values: Mapping[str, Any], file: str | None) -> None:
    """Print the use of a configuration in a script of the user's. file: path for a whole script, or None."""
    print(f"\n{usage(values)}")
    if file is not None:
        try:
            write_atomically(Path(file), script(values, Path(file).name).encode())
            print(f"script: {file}")
        except ConfigError as error:  # the comparison is complete nevertheless
            print(f"no script: {error}")


def usage(values: Mapping[str, Any]) -> str:
    """Return the lines that `dsgd-compare` prints of its winner. values: its resolved configuration."""
    if reason := _unsuitable(values):
        return f"in your own script: not with {reason}"
    lines = (IMPORT, f"optimizer = {_optimizer(values)}", f"model = {_distribute(values)}", STEP)
    return "\n".join(
        ("in your own script (docs/howto/own_loop.md), under torchrun or srun:", *(f"    {line}" for line in lines))
    )


def script(values: Mapping[str, Any], file: str) -> str:
    """Return own_script.txt, which runs unchanged, on invented data, with places for the user's model and data.

    file: its name, for the line that starts it. Raises ConfigError for a method or an optimiser that `dsgd.torch`
    lacks."""
    if reason := _unsuitable(values):
        raise ConfigError(f"--script needs a winner that dsgd.torch.distribute can train, got {reason}")
    budget, nodes = values["budget"], values["nodes"]
    epochs = 20 if budget["epochs"] is None else budget["epochs"]
    template = Template(files("dsgd.cli").joinpath("own_script.txt").read_text(encoding="utf-8"))
    return template.substitute(
        algo=values["algo"]["name"],
        file=file,
        nodes=nodes,
        epochs=max(1, round(epochs)),
        batch_size=values["batch_size"],
        seed=values["seed"],
        optimizer=_optimizer(values),
        distribute=_distribute(values),
        schedule=", ".join(f"{key}={value!r}" for key, value in _options(values["schedule"]).items()),
        scale=configure(values).experiment.scale,
    )


def _unsuitable(values: Mapping[str, Any]) -> str:
    """Return the algorithm or optimiser that `dsgd.torch` does not have, with the reason; empty if it has both."""
    name, target = values["algo"]["name"], str(values["algo"]["_target_"])
    if reason := why_not(configure(values).experiment.algo):
        return f"algo={name}, which needs engine=dist: {reason}"
    if not target.startswith("dsgd.algorithms."):
        return f"algo={name}, which is not dsgd's: give dsgd.torch.distribute an instance of {target}"
    optimizer = values["optimizer"]
    if str(optimizer["_target_"]) not in OPTIMIZERS:
        return f"optimizer={optimizer['name']}, which no optimiser of torch does for all parameters"
    if optimizer["weight_decay"] and not optimizer.get("decay_norm_and_bias", True):
        return "optimizer.decay_norm_and_bias=false, for which you have to make parameter groups"
    return ""


def _distribute(values: Mapping[str, Any]) -> str:
    algo, options = values["algo"]["name"], _options(values["algo"])
    arguments = [f'"{algo}"', *([f"options={options}"] if options else [])]
    if hasattr(configure(values).experiment.algo, "topology"):
        shape = values["topology"]
        keys = {"name": shape["name"], **_options(shape)}
        arguments.append(f"topology={keys!r}" if len(keys) > 1 else f'topology="{shape["name"]}"')
    if values["seed"]:
        arguments.append(f"seed={values['seed']}")
    return f"dsgd.torch.distribute(model, optimizer, {', '.join(arguments)})"


def _optimizer(values: Mapping[str, Any]) -> str:
    options = values["optimizer"]
    name, keys = OPTIMIZERS[str(options["_target_"])]
    return f"torch.optim.{name}(model.parameters(), {', '.join(f'{key}={options[key]!r}' for key in keys)})"


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in NO_OPTIONS}
