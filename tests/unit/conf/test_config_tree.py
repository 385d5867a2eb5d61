"""Every configuration file of the package composes, builds what it says, and the committed experiments run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dsgd.cli.compose import GROUPS, ConfigTree
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError
from tests.support.command import call, lines, summary
from tests.support.each_row import each_row
from tests.support.idx_files import write_idx
from tests.support.simulate import values_of

CONF = Path(__file__).parents[3] / "conf"
FILES = sorted(path for path in CONF.glob("*/*.yaml") if path.parent.name != "slurm")  # which is no part of a run
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))

# what else must be chosen for a choice to make sense
COLOURED = ["data=shapes", "data.channels=3"]
WITH = {
    "cluster=aws10": ["nodes=10"],  # a node for each region
    "model=vector": ["data=quadratic", "batch_size=1"],
    "data=quadratic": ["model=vector", "batch_size=1"],
    "model=gpt": ["data=text"],
    "data=text": ["model=gpt"],
    "model=torchvision": ["model.name=vgg11", *COLOURED],
    "model=import": ["model.target=torch.nn.Flatten"],
    "data=folder": ["data.root=nope"],
    "data=import": ["data.target=tests.unit.data.test_own_data.still", "data.classes=4", "batch_size=5"],
    **{f"model={name}": COLOURED for name in ("resnet18", "resnet34", "resnet50", "googlenet")},
}
# what is not there in an empty folder
ABSENT = {
    "cifar10": r"^data\.root must be a folder with cifar-10",
    "cifar100": r"^data\.root must be a folder with cifar-10",
    "mnist": r"^data\.root must be a folder with MNIST/raw",
    "kmnist": r"^data\.root must be a folder with KMNIST/raw",
    "emnist": r"^data\.root must be a folder with EMNIST/raw",
    "folder": r"^data\.root must be a folder with train/CLASS/",
    "imagenet": r"^data\.path must be ",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images in the place of those that Debian has."""
    found = tmp_path_factory.mktemp("choices")
    write_idx(found / "data", "fashion_mnist", each=200)
    return found


def test_every_folder_is_a_group() -> None:
    assert {path.parent.name for path in FILES} == set(GROUPS)


@each_row("path", FILES)
def test_every_choice_builds(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    choice = f"{path.parent.name}={path.stem}"
    values = values_of(choice, *WITH.get(choice, []))
    word = path.stem if path.parent.name == "data" else path.stem.rpartition("_")[2]
    missing = ABSENT.get(word) if path.parent.name in ("data", "experiment") else None
    if missing is not None:
        with pytest.raises(ConfigError, match=missing):
            configure(values)
        return
    experiment = configure(values).experiment
    if path.parent.name != "experiment" and choice != "model=torchvision":  # which takes the name of its model
        assert values[path.parent.name]["name"] == path.stem
    assert experiment.nodes == values["nodes"]


@each_row("path", FILES)
def test_every_file_says_what_it_is(path: Path) -> None:
    """The first lines are a comment; an experiment gives the command that runs it."""
    opening = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
    assert opening[0].startswith("# ")
    if path.parent.name == "experiment":
        (command,) = re.findall(r"^# Run: dsgd-(?:run|compare) (.*)$", path.read_text(), re.MULTILINE)
        assert f"experiment={path.stem}" in shlex.split(command)


@each_row("name", EXPERIMENTS)
def test_an_experiment_in_virtual_time_is_simulated_on_any_machine(name: str) -> None:
    """Where there are GPUs for all workers, `engine: auto` would ignore its cluster. Those of the published sizes and
    the test bed of quadratics are for real processes, too."""
    text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    for_both = "real processes take their own time" in text or name == "quadratic"
    assert values_of(f"experiment={name}")["engine"]["name"] == ("auto" if for_both else "sim")


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name.rpartition("_")[2] not in ABSENT])
def test_every_experiment_runs(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = call(f"experiment={name}", "nodes=4", "budget.steps=2", f"hydra.run.dir={tmp_path}/short")
    assert result.status == 0, result.err
    assert summary(tmp_path / "short")["status"] == "completed"
    assert lines(tmp_path / "short") >= 2


MARK = b"\xef\xbb\xbf"
CONTENTS = {
    "experiment/mine.yaml": b"# @package _global_\nnodes: 3\nbudget:\n  steps: 4\n",
    "algo/mine.yaml": b"defaults:\n  - sync\nbackups: 1\n",
    "mine.yaml": b"defaults:\n  - config\n  - _self_\nnodes: 3\n",
}


@each_row("path", list(CONTENTS))
def test_a_file_with_a_byte_order_mark_is_as_without(path: str, tmp_path: Path) -> None:
    """Some editors of Windows begin a file of UTF-8 with one."""
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    overrides = [f"{file.parent.name}=mine"] if "/" in path else []
    texts: list[str] = []
    for before, after in ((b"", b"\n"), (MARK, b"\n"), (MARK, b"\r\n")):
        file.write_bytes(before + CONTENTS[path].replace(b"\n", after))
        tree = ConfigTree(str(tmp_path), "config" if overrides else "mine")
        texts.append(tree.text(overrides, resolve=False))
    assert len(set(texts)) == 1
    assert texts[0] != ConfigTree().text([], resolve=False)


@each_row("content", ["nodes: 3".encode("utf-16"), b"nodes: 3 # gr\xf6\xdfer"])
def test_a_file_of_another_encoding_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{tmp_path}/experiment/mine.yaml must be a text file in UTF-8"):
        ConfigTree(str(tmp_path)).load(["experiment=mine"])
