"""A warning that a robot sees or plans what the data does not have."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy
from loading import load_module
from numpy.typing import NDArray

from trimtab.benchmarks.artefacts.export import export_bundle
from trimtab.benchmarks.cli.main import run as command
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import bundle_hash, check_bundle
from trimtab.policies.bundle.onnx_policy import read_policy
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.robot.log import Played, read_log
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.robot.replay import replay
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.robot.warning import Detector, episode_threshold
from trimtab.policies.runtime import NO_LIMITS, Hold, Limits, load_policy

numbered: Callable[..., PolicyRunner] = load_module(
    Path(__file__).with_name("numbered.py")
).numbered
NAMES = ("shoulder", "elbow", "gripper", "shoulder_mark", "elbow_mark")
STEPS = 25


def test_the_rank_keeps_the_share_of_false_alarms() -> None:
    """1,000 sets of 50 episodes: a new one is above the 49th smallest with probability 2 / 51."""
    highest = np.random.default_rng(0).uniform(size=(1000, 50))
    false_alarms = 1.0 - episode_threshold(highest, 0.05)  # the scores are uniform
    assert false_alarms.mean() == pytest.approx(2 / 51, abs=0.003)
    assert episode_threshold(np.arange(1.0, 20.0), 0.05) == 19  # the smallest M: its greatest
    assert episode_threshold(np.arange(1.0, 101.0), 0.05) == 96
    with pytest.raises(TrimtabError, match="10 episodes are too few for 5 percent .* at least 19"):
        episode_threshold(highest[:, :10], 0.05)
    with pytest.raises(TrimtabError, match="too few"):
        episode_threshold(highest[:, :18], 0.05)


def test_scores_are_those_of_a_plain_loop() -> None:
    generator = np.random.default_rng(1)
    episodes = [generator.normal([0, 5, 7], [1, 2, 0], (40, 3)) for _ in range(4)]
    detector = replace(Detector.fit(episodes, "abc"), threshold=1.5)
    rows = np.concatenate(episodes)
    low, high = np.quantile(rows, [0.001, 0.999], axis=0)
    for row in ([0.5, 4.0, 7.0], [9.0, 4.0, 7.0], [0.5, 4.0, 7.1], [0.0, 50.0, -7.0]):
        standard = [
            (x - m) / (s or 7e-3) for x, m, s in zip(row, rows.mean(0), rows.std(0), strict=True)
        ]
        apart = sorted(
            np.linalg.norm(
                (one - rows.mean(0)) / np.where(rows.std(0), rows.std(0), 7e-3) - standard
            )
            for one in rows
        )
        reach = []
        for x, least, most in zip(row, low, high, strict=True):
            margin = 0.1 * (most - least) or 7e-3
            reach.append(abs(x - (least + most) / 2) / ((most - least) / 2 + margin))
        score, found = detector.score(np.array(row))
        expected = {"range": max(reach), "neighbours": apart[4] / detector.distance}
        assert score == pytest.approx(max(expected.values()), rel=1e-4)
        assert found.by == max(expected, key=lambda name: expected[name])
        outside = sorted((i for i in range(3) if reach[i] > 1), key=lambda i: -reach[i])
        assert found.entries == tuple("abc"[i] for i in outside)
    # At the edge of the data is 1: no observation is beyond the ranges by much, nor far from all.
    inside = [detector.score(row)[0] for row in rows]
    assert max(inside) < 1.6 and np.mean(np.array(inside) > 1) < 0.02


def test_chunks_are_compared_over_the_ticks_that_they_share() -> None:
    """Entry i of a chunk is the observation + i, so one that is the tick repeats the plan."""
    episodes = [np.arange(40.0)[:, None] + shift for shift in range(3)]
    detector = replace(
        Detector.fit(episodes, ["tick"]), chunk_distance=0.01, threshold=10.0, interval=4
    )
    runner = numbered(detector=detector, limit=100.0, fallback=Hold(patience=1))
    seen: list[Any] = [0, 1, 2, 3, 4, 5, 6, 7, 11, 9, 10, None, 12]
    found = []
    for obs in seen:
        runner.step(None if obs is None else [obs])
        found.append(None if runner.chunk_distance is None else round(runner.chunk_distance, 6))
    # Chunks come at ticks 0, 4, 8 and 12; that of 8 is 3 of 100 away, and that of 12 as far back.
    assert found == [None, *[None] * 3, 0, *[None] * 3, 0.03, *[None] * 3, 0.03]
    assert runner.counts["warned"] == 0 and runner.score == pytest.approx(3.0)
    runner.reset()
    assert runner.score is None
    other = numbered(detector=detector, limit=100.0, mode=RecedingHorizon(2))
    for tick in range(8):
        other.step([tick])
    assert other.chunk_distance is None  # calibrated for other intervals


def test_a_reference_of_fewer_observations_than_neighbours_is_refused() -> None:
    with pytest.raises(TrimtabError, match="too few or too short"):
        Detector.fit([np.zeros((1, 2)), np.ones((2, 2))], "ab")


def arm(count: int, seed: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Return observations and actions of an arm that moves to a mark and closes its gripper."""
    generator = np.random.default_rng(seed)
    episodes = []
    for _ in range(count):
        joints, mark = generator.uniform(-1, 1, 2), generator.uniform(-1, 1, 2)
        rows, actions = [], []
        for step in range(STEPS):
            speed = np.clip(2 * (mark - joints) + 0.1 * generator.normal(size=2), -1, 1)
            rows.append([*joints, 0.08 - 0.002 * step, *mark])
            actions.append(speed)
            joints = joints + speed / 20
        episodes.append((np.float32(rows), np.float32(actions)))
    return episodes


def written(path: Path, episodes: list[tuple[NDArray[Any], NDArray[Any]]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    ends = np.tile(np.arange(STEPS) == STEPS - 1, len(episodes))
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([rows for rows, _ in episodes])
        file["actions"] = np.concatenate([actions for _, actions in episodes])
        file["rewards"] = np.zeros(len(ends), np.float32)
        file["terminals"], file["timeouts"] = np.zeros(len(ends), bool), ends
    contract = {
        "control_rate": 20,
        "observation": {"names": list(NAMES), "units": ["rad", "rad", "m", "rad", "rad"]},
        "action": {"names": ["shoulder", "elbow"], "units": "rad/s"},
        "limits": {"acceleration": 100, "of_velocities": True},
    }
    path.with_name("contract.yaml").write_text(json.dumps(contract))
    return path


@pytest.fixture(scope="module")
def warned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the arm's data, calibrated on other episodes."""
    place = tmp_path_factory.mktemp("arm")
    words = ["algorithm=bc", "policy=flow", "policy.hidden=[16]", "policy.sampling_steps=1"]
    words += [f"dataset={written(place / 'train' / 'x.hdf5', arm(30, 0))}", f"out={place / 'runs'}"]
    run = train(
        compose_run([*words, "act_steps=4", "offline_steps=200", "algorithm.batch_size=64"])
    )
    export_bundle(run.folder, place / "bundle")
    held_out = written(place / "held" / "x.hdf5", arm(80, 1))
    told = [f"bundle={place / 'bundle'}", f"dataset={held_out}", f"out={place / 'warned'}"]
    assert command(["calibrate", *told, "interval=2"]) == 0
    return place / "warned"


def played(folder: Path, change: Callable[[NDArray[Any]], NDArray[Any]], **more: Any) -> Any:
    """Return the first warning of each of twenty fresh episodes, and at which tick it came."""
    runner = load_policy(folder, mode=RecedingHorizon(2), **more)
    found = []
    for rows, _ in arm(20, 2):
        runner.reset(action=[0.0, 0.0])
        first = None
        for tick, row in enumerate(rows):
            runner.step(change(row))
            if runner.warning is not None and first is None:
                first = tick, runner.warning
        found.append(first)
    runner.close()
    return found


def degrees(row: NDArray[Any]) -> NDArray[Any]:
    return row * np.float32([57.3, 57.3, 1, 1, 1])


def swapped(row: NDArray[Any]) -> NDArray[Any]:
    return row[[2, 1, 0, 3, 4]]


def test_other_units_and_swapped_entries_are_warned_of_at_once(warned: Path) -> None:
    plain = played(warned, lambda row: row)
    assert sum(first is not None for first in plain) <= 4  # of 20, at 5 percent
    for change, names in ((degrees, {"shoulder", "elbow"}), (swapped, {"gripper"})):
        found = played(warned, change)
        ticks = [99 if first is None else first[0] for first in found]
        # A shoulder at 0.083 rad looks like a gripper that is open by 0.083 m, for one tick.
        assert ticks.count(0) >= 19 and max(ticks) <= 1
        for _, warning in found:
            assert warning.score > warning.threshold
            assert warning.entries == () or warning.entries[0] in names  # the farthest
        assert sum(warning.entries != () for _, warning in found) >= 19


def test_a_bundle_carries_names_units_limits_and_its_warning(warned: Path) -> None:
    config = json.loads((warned / "config.json").read_text())
    observed, action = config["inputs"]["obs"], config["outputs"]["action"]
    assert observed["order"] == list(NAMES) and observed["units"][2] == "m"
    assert action["order"] == ["shoulder", "elbow"] and set(action["units"]) == {"rad/s"}
    assert load_policy(warned).limits == Limits(acceleration=100, of_velocities=True)
    stated = config["warning"]
    assert (stated["episodes"], stated["checked"]["episodes"], stated["delta"]) == (40, 20, 0.05)
    assert stated["chunk_distance"] > 0 and stated["checked"]["alarms"] <= 4
    assert stated["checked"]["low"] < 0.05 < stated["checked"]["high"]
    assert bundle_hash(warned) == bundle_hash(warned.with_name("bundle"))  # the same policy
    assert check_bundle(warned)["onnx"] < 1e-4
    assert "## A warning" in (warned / "README.md").read_text()


def test_the_log_and_the_report_have_it(warned: Path, tmp_path: Path) -> None:
    played(warned, degrees, log=tmp_path / "log")
    found = replay(tmp_path / "log", warned)
    assert found.equal and found.warned > 400
    steps = read_log(tmp_path / "log").steps(read_policy(warned).contract)
    scores = [step.score for step in steps if isinstance(step, Played)]
    assert len(scores) == found.ticks == 20 * STEPS and None not in scores
    threshold = json.loads((warned / "config.json").read_text())["warning"]["threshold"]
    assert sum(score > threshold for score in scores if score is not None) == found.warned


def test_a_copy_without_weights_is_calibrated_anew(warned: Path, tmp_path: Path) -> None:
    runner = load_policy(withhold_weights(warned, tmp_path / "box"))
    runner.step(np.float32([57, 57, 1, 1, 1]))
    assert runner.warning is None and runner.score is None


@pytest.mark.parametrize(
    ("episodes", "words", "told"),
    [
        (30, [], "30 successful episodes, half .* at least 38"),
        (12, ["delta=0.5"], None),
        (12, ["delta=1"], "delta=1: give a share below 1"),
        (12, ["delta=0.5", "interval=9"], "interval=9: a chunk has 4"),
    ],
)
def test_too_little_data_is_refused(
    episodes: int, words: list[str], told: str | None, warned: Path, tmp_path: Path
) -> None:
    data = written(tmp_path / "held" / "x.hdf5", arm(episodes, 3))
    given = [f"bundle={warned.with_name('bundle')}", f"dataset={data}", f"out={tmp_path / 'b'}"]
    if told is None:
        assert command(["calibrate", *given, *words]) == 0
        return
    with pytest.raises(TrimtabError, match=told):
        command(["calibrate", *given, *words])
    assert not (tmp_path / "b").exists()


def test_data_that_leaves_the_workspace_calibrates_all_the_same(
    warned: Path, reseal: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(warned.with_name("bundle"), tmp_path / "bundle")
    box = {"position": "gripper", "low": 0.05}  # it closes to 0.03
    reseal(folder, config={"limits": {"velocity": 9.0, "workspace": box}})
    data = written(tmp_path / "held" / "x.hdf5", arm(12, 3))
    words = [f"bundle={folder}", f"dataset={data}", f"out={folder}", "delta=0.5"]
    assert command(["calibrate", *words]) == 0
    runner = load_policy(folder, fallback=Hold())
    assert runner.limits.workspace is not None and read_policy(folder).warning is not None


def test_data_that_the_policy_was_trained_on_is_told(
    warned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = [f"bundle={warned.with_name('bundle')}", f"out={tmp_path / 'b'}", "delta=0.5"]
    assert command(["calibrate", *words, f"dataset={warned.with_name('train') / 'x.hdf5'}"]) == 0
    assert f"{warned.with_name('train') / 'x.hdf5'}: the policy was trained on it" in caplog.text
    assert "the 50 percent of delta=0.5 " in capsys.readouterr().out
    for folder, seen in ((tmp_path / "b", True), (warned, False)):
        stated = json.loads((folder / "config.json").read_text())["warning"]
        assert ("trained_on" in stated) == seen
        assert ("trained_on: true" in (folder / "README.md").read_text()) == seen
    assert load_policy(tmp_path / "b").contract == load_policy(warned).contract


def test_no_other_bundle_is_replaced(warned: Path) -> None:
    before = (warned / "config.json").read_bytes()
    given = [f"bundle={warned.with_name('bundle')}", "dataset=two_doors", f"out={warned}"]
    with pytest.raises(TrimtabError, match="is there already"):
        command(["calibrate", *given])
    assert (warned / "config.json").read_bytes() == before


def test_a_damaged_warning_is_refused(warned: Path, reseal: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(warned, tmp_path / "b")
    tensors = safetensors.numpy.load_file(folder / "warning.safetensors")
    stated = json.loads((folder / "config.json").read_text())["warning"]
    for changed in (
        {"low": tensors["high"]},
        {"stored": tensors["stored"][:, :4].copy()},
        {"mean": tensors["mean"] * np.float32(np.nan)},
    ):
        reseal(folder, warning=safetensors.numpy.save({**tensors, **changed}))
        with pytest.raises(TrimtabError, match="its warning is malformed"):
            load_policy(folder)
    reseal(folder, warning=safetensors.numpy.save(tensors))
    for entry in ({"threshold": -1.0}, {"interval": 2.5}, {"distance": None}):
        reseal(folder, config={"warning": {**stated, **entry}})
        with pytest.raises(TrimtabError, match="its warning is malformed"):
            load_policy(folder)
    reseal(folder, config={"warning": None})
    with pytest.raises(TrimtabError, match="need one another"):
        load_policy(folder)
    reseal(folder, config={"warning": stated})
    assert load_policy(folder, limits=NO_LIMITS).warning is None
