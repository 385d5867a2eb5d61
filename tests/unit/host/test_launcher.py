"""What the environment says about the launch, for environments as the launchers really make them."""

from __future__ import annotations

import pytest

from dsgd.host.launcher import PORTS, advice, ends_of, launch, legible
from tests.support.each_row import each_row

TORCHRUN = {
    "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "h1", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "False",
}  # fmt: skip
BY_HAND = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
BATCH = {  # what a batch script sees
    "SLURM_JOB_ID": "200505",
    "SLURM_JOB_NODELIST": "gnode[10,20,25,37]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
STEP = BATCH | {  # what its srun adds
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gnode[20,25]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}


def test_without_a_launcher_the_process_is_alone_and_its_job_has_an_id_of_its_own() -> None:
    first, second = launch({}), launch({})
    assert (first.kind, first.rank, first.nodes, first.local_rank) == ("local", 0, 1, 0)
    assert (first.master_address, first.master_port, first.attempt) == ("127.0.0.1", 0, 0)
    assert first.job != second.job


def test_torchrun_describes_its_processes() -> None:
    found = launch(TORCHRUN)
    assert (found.kind, found.rank, found.nodes, found.local_rank) == ("torchrun", 2, 4, 0)
    assert (found.master_address, found.master_port, found.attempt) == ("h1", 29500, 0)
    assert not found.agent_store
    assert launch(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).agent_store


def test_the_variables_of_torchrun_may_be_set_by_hand() -> None:
    found = launch(BY_HAND)
    assert (found.kind, found.rank, found.nodes, found.attempt) == ("torchrun", 2, 4, 0)


@each_row("changes", [{}, {"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}])
def test_torchrun_started_by_srun_wins_over_the_step_around_it(changes: dict[str, str]) -> None:
    """Its agents are the step's tasks; the processes are not, so nothing needs to agree."""
    found = launch(STEP | TORCHRUN | changes)
    assert (found.kind, found.rank, found.nodes) == ("torchrun", 2, 4)


def test_a_step_of_srun_describes_its_tasks() -> None:
    found = launch(STEP)
    assert (found.kind, found.rank, found.nodes, found.local_rank) == ("slurm", 3, 4, 1)
    assert found.master_address == "gnode20", "the first host of the step, which may have fewer than the job"
    assert found.master_port in PORTS
    assert found.attempt == 0
    assert launch(STEP | {"SLURM_RESTART_COUNT": "2"}).attempt == 2


def test_a_step_may_have_fewer_tasks_than_its_job() -> None:
    """srun --preserve-env -n2 leaves SLURM_NTASKS at what the job has."""
    assert launch(STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}).nodes == 2
    without = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert launch(without).nodes == 4


@each_row(
    ("node", "counts", "here"),
    [("0", "2(x3),1", 2), ("2", "2(x3),1", 2), ("3", "2(x3),1", 1), ("0", "4", 4), ("1", "1,3", 3)],
)
def test_a_task_knows_how_many_tasks_its_machine_has(node: str, counts: str, here: int) -> None:
    assert launch(STEP | {"SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": counts}).local_nodes == here


def test_a_process_of_torchrun_knows_how_many_its_machine_has() -> None:
    assert launch(TORCHRUN | {"LOCAL_WORLD_SIZE": "2"}).local_nodes == 2


def test_a_master_that_is_set_wins_over_the_list_of_hosts() -> None:
    found = launch(STEP | {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "6000"})
    assert (found.kind, found.master_address, found.master_port) == ("slurm", "10.0.0.7", 6000)


def test_the_variables_of_torchrun_are_welcome_in_a_step_where_they_agree() -> None:
    found = launch(STEP | {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "h1", "MASTER_PORT": "1"})
    assert (found.kind, found.rank, found.nodes, found.master_address) == ("slurm", 3, 4, "h1")


ONE_TASK = STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@each_row(
    "environment",
    [
        TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "trainer-0", "MASTER_PORT": "23456"},
        ONE_TASK,
    ],
)
def test_one_process_is_no_launch(environment: dict[str, str]) -> None:
    place = launch(environment)
    assert (place.kind, place.rank, place.nodes, place.master_address) == ("local", 0, 1, "127.0.0.1")
    assert advice(environment) is None


def test_a_step_of_one_task_is_known_after_a_restart_and_a_shell_is_none() -> None:
    assert launch(ONE_TASK).step == "slurm-200505.0"
    assert launch(ONE_TASK | {"SLURM_RESTART_COUNT": "2"}).attempt == 2
    assert launch(ONE_TASK | {"SLURM_PTY_PORT": "40107", "SLURM_PTY_WIN_COL": "80"}).step is None


def test_what_makes_no_sense_is_an_error_for_those_alone_who_are_concerned() -> None:
    assert legible({"WORLD_SIZE": "4"}) is None
    assert legible(STEP) == launch(STEP)


@each_row(
    "environment",
    [
        BATCH,
        BATCH | {"SLURM_STEP_ID": "4294967290"},  # the shell of salloc as a step of its own kind
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"},  # the shell of salloc on the login node
        BATCH | {"WORLD_SIZE": "4", "MASTER_ADDR": "gnode10"},  # a script that prepares what its srun will pass on
    ],
)
def test_outside_of_a_step_a_slurm_job_is_local_and_the_user_is_told_of_srun(environment: dict[str, str]) -> None:
    assert launch(environment).kind == "local"
    assert "srun" in str(advice(environment))


@each_row("environment", [{}, TORCHRUN, STEP, STEP | TORCHRUN, BATCH | BY_HAND])
def test_there_is_no_advice_where_nothing_is_amiss(environment: dict[str, str]) -> None:
    assert advice(environment) is None


def test_processes_that_a_batch_script_starts_itself_are_not_compared_with_the_script() -> None:
    assert launch(BATCH | BY_HAND).rank == 2


@each_row("base", [TORCHRUN, STEP])
def test_all_processes_of_a_job_share_its_id_and_a_restart_changes_it(base: dict[str, str]) -> None:
    rank, restarts = ("RANK", "TORCHELASTIC_RESTART_COUNT")
    if base is STEP:
        rank, restarts = ("SLURM_PROCID", "SLURM_RESTART_COUNT")
    ids = [launch(base | changes).job for changes in ({rank: "0"}, {rank: "1"}, {restarts: "1"}, {restarts: "2"})]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_jobs_and_their_steps_have_ids_and_ports_of_their_own() -> None:
    changes = [{"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)} for job in range(50, 70) for step in range(30)]
    found = [launch(STEP | change) for change in changes]
    assert len({one.job for one in found}) == len(found)
    assert len({one.master_port for one in found}) == len(found)
    assert all(one.master_port in PORTS for one in found)
    inside = [launch(STEP | TORCHRUN | change).job for change in changes]
    assert len(set(inside)) == len(inside), "torchrun's run id is the same in all jobs, unless given"


@each_row(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE must be set where RANK='0' is"),
        (BY_HAND | {"RANK": "4"}, "RANK must be below WORLD_SIZE, got RANK=4 and WORLD_SIZE=4"),
        (BY_HAND | {"RANK": "-1"}, "RANK must be an integer >= 0, got '-1'"),
        (BY_HAND | {"RANK": ""}, "RANK must not be empty, got ''"),
        (BY_HAND | {"MASTER_PORT": "65536"}, "MASTER_PORT must be in 1..65535, got 65536"),
        (BY_HAND | {"MASTER_PORT": "2_9500"}, "MASTER_PORT must be an integer >= 1, got '2_9500'"),
        (STEP | {"RANK": "2"}, "RANK='2' contradicts SLURM_PROCID='3'"),
    ],
)
def test_nonsense_and_contradictions_are_one_line_with_names_and_values(
    environment: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=r"must|contradicts") as raised:
        launch(environment)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


@each_row("missing", BY_HAND)
def test_half_of_a_launcher_is_an_error(missing: str) -> None:
    with pytest.raises(ValueError, match=f"^{missing} must be set where "):
        launch({name: value for name, value in BY_HAND.items() if name != missing})


@each_row(
    ("nodelist", "first", "last"),
    [
        ("n[1-3,7],m5", "n1", "m5"),
        ("n[007-010]", "n007", "n010"),
        ("rack[1-2]n[3-4]", "rack1n3", "rack2n4"),
        ("x,n[5,9]-ib", "x", "n9-ib"),
        ("n[5,9]-ib,x", "n5-ib", "x"),
    ],
)
def test_the_ends_of_a_list_of_hosts(nodelist: str, first: str, last: str) -> None:
    assert ends_of(nodelist) == (first, last)


@each_row("nodelist", ["", "n[", "n[]", "n]1", ",n1", "n[a-b]", "n1 n2", "n1,n[2"])
def test_what_is_no_list_of_hosts_is_refused(nodelist: str) -> None:
    with pytest.raises(ValueError, match=r"^nodelist must be a list of hosts"):
        ends_of(nodelist)
