"""Runs that learn from a file alone, without a task, up to a bundle that acts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from loading import load_module

from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.board.sources import collect
from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.training.fits import checked_plan
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings_of import command_of
from trimtab.benchmarks.training.train import train
from trimtab.datasets.catalog import format_of
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.opening import load_policy
from trimtab.types import TrimtabError

HERE = Path(__file__).resolve().parent
foreign = load_module(HERE.parents[1] / "datasets" / "foreign.py")
outcome = load_module(HERE / "resumed.py").outcome
OBSERVED = 3


def words(path: Path, *more: str) -> list[str]:
    named = {word.partition("=")[0] for word in more}
    small = [
        f"dataset={path}", "algorithm=bc", "policy=gaussian", "policy.hidden=[8]",
        "algorithm.batch_size=8", "offline_steps=6", f"out={path.parent / 'runs'}",
    ]  # fmt: skip
    return [*(word for word in small if word.partition("=")[0] not in named), *more]


@pytest.mark.parametrize("format", foreign.WRITERS)
def test_a_file_of_every_format_becomes_a_bundle_that_acts(format: str, tmp_path: Path) -> None:
    name, write = foreign.WRITERS[format]
    write(tmp_path / name)
    done = train(compose_run(words(tmp_path / name, "act_steps=2", "holdout=0.5")))
    data = format_of(tmp_path / name).load(tmp_path / name)
    assert done.folder.relative_to(tmp_path / "runs").parts[:2] == ("data", "bc")
    assert (done.summary["return"], done.summary["episodes"]) == (None, 0)
    assert read_episodes(done.folder / "episodes.parquet").num_rows == 0
    assert str(tmp_path / "runs") in str(command_of(done.folder))

    assert export_bundle(done.folder, tmp_path / "bundle")["onnx"] < 1e-4
    contract = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert contract["control_rate"] == data.control_rate
    assert contract["outputs"]["action"]["low"] == list(data.action_low)
    robot, policy = load_policy(tmp_path / "bundle"), load_bundle(tmp_path / "bundle").policy
    seen = data.episodes[0].observations[0]
    robot.reset(seed=0)
    assert robot.step(seen).shape == (data.action_dim,)
    whole = robot.predict(seen[None], np.zeros((1, *policy.noise_shape), np.float32))
    acted = policy.act(torch.tensor(seen)[None], deterministic=True)
    np.testing.assert_allclose(whole, acted.numpy(), atol=1e-5)


def order(path: Path, *more: str) -> tuple[Any, Any]:
    """Return what a run calls the entries of observations and actions."""
    found = checked_plan(compose_run(words(path, *more))).described
    return found.get("obs_names"), found.get("action_names")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x", "y"], ["x", "y"]),
        ({"motors": ["a", "b"]}, ["a", "b"]),
        (["state"], ["action.0", "action.1"]),  # as some published folders have it
        (None, ["action.0", "action.1"]),
        (["x", "x"], None),
    ],
)
def test_names_of_lerobot_are_taken(names: Any, expected: Any, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    place = tmp_path / "x" / "meta" / "info.json"
    info = json.loads(place.read_text())
    info["features"]["action"]["names"] = names
    info["features"]["observation.state"]["names"] = ["q", "dq"]
    place.write_text(json.dumps(info))
    seen, acted = order(tmp_path / "x")
    assert seen[:3] == ["state.q", "state.dq", "environment_state"] and acted == expected


def test_names_of_keys_are_taken(tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5") as file:
        there = file["data/demo_0/obs"]
        keys = {key: there[key].shape[1:] for key in there if len(there[key].shape) <= 2}
    seen, _ = order(tmp_path / "x.hdf5")
    wanted = [
        name
        for key, shape in sorted(keys.items())
        for name in ([f"{key}.{i}" for i in range(shape[0])] if shape and shape[0] > 1 else [key])
    ]
    assert seen == wanted

    foreign.minari(tmp_path / "m")
    box = {"type": "Box", "dtype": "float32"}
    arm = {**box, "shape": [2], "low": [0, 0], "high": [1, 1]}
    hand = {**box, "shape": [1], "low": [0], "high": [1]}
    space = {"type": "Dict", "subspaces": {"arm": arm, "hand": hand}}
    place = tmp_path / "m" / "data" / "metadata.json"
    place.write_text(
        json.dumps({**json.loads(place.read_text()), "observation_space": json.dumps(space)})
    )
    with h5py.File(tmp_path / "m" / "data" / "main_data.hdf5", "a") as file:
        for group in file.values():
            flat = group["observations"][()]
            del group["observations"]
            group["observations/arm"], group["observations/hand"] = flat[:, :2], flat[:, 2:3]
    assert order(tmp_path / "m")[0] == ["arm.0", "arm.1", "hand"]
    assert order(tmp_path / "m", "dataset.keys='hand,arm'")[0][0] == "hand"


CONTRACT = """
control_rate: 10
observation: {units: rad}
action: {names: [left, right], units: [m, rad], low: -40, high: [50, 60]}
limits: {velocity: [5, 6]}
"""


def test_a_contract_beside_the_data_reaches_the_bundle(tmp_path: Path) -> None:
    foreign.d4rl(tmp_path / "x.hdf5")
    plain = train(compose_run(words(tmp_path / "x.hdf5")))
    (tmp_path / "contract.yaml").write_text("\ufeff" + CONTRACT, encoding="utf-8")
    done = train(compose_run(words(tmp_path / "x.hdf5")))
    assert done.folder != plain.folder  # another contract is another run
    (tmp_path / "contract.yaml").rename(tmp_path / "mine.yaml")
    named = words(tmp_path / "x.hdf5", f"contract={tmp_path / 'mine.yaml'}")
    assert train(compose_run(named)).already_done
    export_bundle(done.folder, tmp_path / "bundle")
    contract = json.loads((tmp_path / "bundle" / "config.json").read_text())
    action = contract["outputs"]["action"]
    assert (action["order"], action["units"]) == (["left", "right"], ["m", "rad"])
    assert (action["low"], action["high"]) == ([-40, -40], [50, 60])
    assert contract["limits"] == {"velocity": [5.0, 6.0]}
    assert set(contract["inputs"]["obs"]["units"]) == {"rad"} and contract["control_rate"] == 10
    assert "[batch, 1, 2] float32, in m, rad" in (tmp_path / "bundle" / "README.md").read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rate: 10", "there is no entry 'rate'"),
        ("action: {unit: m}", "action: there is no entry 'unit'; did you mean units?"),
        ("action: [a, b]", "action must be a mapping"),
        ("action: {names: [a]}", "action.names has 1 entries, and the action has 2"),
        ("action: {names: [a, a]}", "action.names has 'a' twice"),
        ("action: {names: ab}", "action.names must be a list of 2 texts"),
        ("observation: {units: [rad, 3]}", "observation.units must be a list"),
        ("action: {low: [-9, x]}", "action.low must be 2 finite numbers"),
        ("action: {low: [-9, -9, -9]}", "action.low has 3 entries"),
        ("action: {low: 2, high: 1}", "has limits 2 and 1"),
        ("action: {high: .inf}", "action.high must be 2 finite numbers"),
        ("action: {low: -1e-9, high: 1e-9}", "and the data leaves that"),
        ("limits: {speed: 1}", "limits: there is no entry 'speed'"),
        ("limits: {velocity: [1, 2, 3]}", "give one number, or 2"),
        ("limits: {workspace: {position: 9, low: 0}}", "no entry 9; the observation has"),
        (
            "observation: {units: rad}\nlimits: {workspace: {position: 0, low: 0}}",
            "is observed in rad, and a workspace is in metres",
        ),
        ("control_rate: fast", "control_rate must be actions a second, got 'fast'"),
        ("control_rate: 0", "control_rate must be actions a second, got 0"),
        ("control_rate: 25", "control_rate is 25, and the data has 10"),
        (f"control_rate: 1{'0' * 400}", "control_rate must be actions a second"),
        ("3", "must be a mapping"),
        ("- a", "must be a mapping, such as control_rate"),
        ("a: [", "is no YAML (line 1"),
        ("control_rate: 10\ncontrol_rate: 10", "is no YAML"),
    ],
)
def test_a_wrong_contract_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    (tmp_path / "x" / "contract.yaml").write_text(text)
    with pytest.raises(TrimtabError) as raised:
        train(compose_run(words(tmp_path / "x")))
    assert told in str(raised.value) and "contract" in str(raised.value)
    assert "\n" not in str(raised.value) and not (tmp_path / "runs" / "data").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["algorithm=sac", "online_steps=900", "offline_share=0.5"], "sac acts in a task"),
        (["algorithm=rlpd", "online_steps=90"], "rlpd acts in a task, and this run has none"),
        (["algorithm=dppo", "policy=diffusion", "online_steps=99"], "dppo acts in a task"),
        (["algorithm=dwsl"], "relabels goals, and data:imported/x-v0 has none"),
        (["dataset=two_doors"], "two_doors is recorded in robotics/PointMaze-TwoDoors-Open-v0"),
        (["env_options.horizon=9"], "env_options: are of a task, and this run has none"),
        (["env=gym/Hopper-v5", "contract=c.yaml"], "gym/Hopper-v5 says itself what a contract"),
        (["contract=c.yaml"], "contract c.yaml: cannot be read"),
        (["act_steps=4"], "an episode of data:imported/x-v0 has 3 steps"),
    ],
)
def test_what_needs_a_task_is_refused(more: list[str], told: str, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    own = {word.partition("=")[0] for word in more}
    dropped = {"policy", "policy.hidden", "algorithm.batch_size"} if "algorithm" in own else set()
    given = [w for w in words(tmp_path / "x", *more) if w.partition("=")[0] not in dropped - own]
    with pytest.raises(TrimtabError, match=told):
        train(compose_run(given))


@pytest.mark.parametrize("method", ["iql", "td3_bc", "awac"])
def test_offline_reinforcement_learning_needs_no_task_either(
    method: str, tiny: Any, tmp_path: Path
) -> None:
    given = ["algorithm.hidden=[8]", "algorithm.batch_size=8", "offline_steps=6"]
    given = [f"dataset={tiny.dataset}", f"algorithm={method}", *given, f"out={tmp_path}"]
    done = train(compose_run([*given, "holdout=0.25"]))
    assert done.folder.parts[-4:-2] == ("data", method)
    assert len(done.summary["held_out"]["controls"]) == 3
    sequences = [word.replace(method, "decision_transformer") for word in given]
    with pytest.raises(TrimtabError, match="reads .* of the running episode"):
        train(compose_run([*sequences[:2], *sequences[3:], "holdout=0.25"]))
    with pytest.raises(TrimtabError, match="names no task to play"):
        command(["evaluate", f"policy={done.folder}"])
    told = ["evaluate", "offline=true", f"policy={done.folder}", f"dataset={tiny.dataset}"]
    assert command([*told, "estimator=fitted_q", "updates=2"]) == 0


def test_runs_and_leaderboard_say_what_there_is(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign.lerobot(tmp_path / "x")
    alone = train(compose_run(words(tmp_path / "x", "holdout=0.5")))
    error = alone.summary["held_out"]["error"]
    with pytest.raises(TrimtabError, match=r"nothing to compare .* 1 run.s. learned from data"):
        collect(tmp_path / "runs")
    assert command(["runs", str(tmp_path / "runs"), "format=json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["return"], line["held_out"]) == (None, error)
    with_task = [*tiny.cloning(tmp_path / "runs"), "offline_steps=5"]
    last = {word.partition("=")[0]: word for word in with_task}
    train(compose_run(list(last.values())))
    table, sources = collect(tmp_path / "runs")
    assert table.num_rows == 2 and "in no table" in sources.notes[0]


def test_a_stopped_run_ends_in_the_same_bits(
    tmp_path: Path, stopped_at: Callable[[int], Any]
) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    more = ["policy=flow", "offline_steps=30", "checkpoint_every=4", "eval_every=7", "holdout=0.5"]
    whole = train(compose_run(words(tmp_path / "x.hdf5", *more, f"out={tmp_path / 'whole'}")))
    again = compose_run(words(tmp_path / "x.hdf5", *more, f"out={tmp_path / 'again'}"))
    for position in (6, 15, 29):
        with stopped_at(position):
            train(again)
    assert outcome(train(again).folder) == outcome(whole.folder)


def test_a_run_with_a_task_keeps_its_document(tiny: Any, tmp_path: Path) -> None:
    plain = checked_plan(compose_run(tiny.cloning(tmp_path))).identity
    assert "holdout" not in plain and set(plain["task"]) == {"id", "options", "physics"}
    held = dict(checked_plan(compose_run([*tiny.cloning(tmp_path), "holdout=0.25"])).identity)
    assert held.pop("holdout") == {"share": 0.25} and held == plain


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["holdout=0.5"], "score=auto: a run without a task has no auto; there are: held_out"),
        (
            ["holdout=0.5", "hydra.sweeper.score=held_out_error"],
            "the smaller it is the better; add hydra.sweeper.direction=minimize",
        ),
    ],
)
def test_a_search_is_told_what_there_is_to_search_by(
    more: list[str], told: str, tmp_path: Path
) -> None:
    foreign.lerobot(tmp_path / "x")
    swept = words(tmp_path / "x", "algorithm.batch_size=4,8", "hydra/sweeper=optuna", *more)
    with pytest.raises(TrimtabError, match=told):
        command(["train", "-m", *swept])
    assert not (tmp_path / "runs").exists()


def test_times_that_contradict_the_rate_are_refused_without_a_task_too(tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x", timestamp=np.array([0, 0.2, 0.4, 0, 0.2], np.float32))
    with pytest.raises(TrimtabError, match="control_rate"):
        train(compose_run(words(tmp_path / "x")))
    done = train(compose_run(words(tmp_path / "x", "dataset.control_rate=5")))
    contract = json.loads((done.folder / "policy" / "config.json").read_text())
    assert contract["control_rate"] == 5
