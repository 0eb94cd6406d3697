"""Folders and robots of LeRobot: what we write for its loader, and how its robots are driven.

LeRobot itself is not installed here; ``scripts/clients.py`` runs it on the same folders.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from serving import running

from trimtab.benchmarks.cli.main import run
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import CONFIG, read_files
from trimtab.policies.bundle.lerobot import LEROBOT_FILES, BatchPolicy, read_packed, write_lerobot
from trimtab.policies.bundle.onnx_policy import OnnxPolicy, read_policy
from trimtab.policies.lerobot import LeRobotLink, connect
from trimtab.policies.robot.loop import control_loop
from trimtab.policies.runtime import NO_LIMITS, load_policy

BundleOf = Callable[[str], Path]
STATE = {"observation.state": (6,)}


@pytest.fixture(scope="module")
def packed(bundle_of: BundleOf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flow policy as a folder of LeRobot."""
    return write_lerobot(bundle_of("flow"), tmp_path_factory.mktemp("lerobot") / "flow")


def states(rows: int, ticks: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=(ticks, rows, 6)).astype(np.float32)


def test_a_folder_of_lerobot_has_its_files_and_the_bundle(
    packed: Path, bundle_of: BundleOf
) -> None:
    assert {path.name for path in packed.iterdir()} == set(LEROBOT_FILES)
    config = json.loads((packed / "config.json").read_text())
    assert config["type"] == "trimtab" and config["device"] == "cpu"
    assert config["input_features"] == {"observation.state": {"type": "STATE", "shape": [6]}}
    assert config["output_features"] == {"action": {"type": "ACTION", "shape": [2]}}
    assert (config["chunk_size"], config["n_action_steps"]) == (4, 3)
    assert config["action_feature_names"] == ["force_x", "force_y"]
    for name, steps in (
        ("policy_preprocessor", ["rename_observations_processor", "to_batch_processor"]),
        ("policy_postprocessor", []),
    ):
        chain = json.loads((packed / f"{name}.json").read_text())
        assert chain["name"] == name
        assert [step["registry_name"] for step in chain["steps"]] == [*steps, "device_processor"]
    tensors = safetensors.numpy.load_file(packed / "model.safetensors")
    source = {path.name: path.read_bytes() for path in bundle_of("flow").iterdir()}
    assert {name: part.tobytes() for name, part in tensors.items()} == {
        name: data for name, data in source.items() if name != "README.md"
    }
    assert read_packed(packed / "model.safetensors").sha256 == read_policy(bundle_of("flow")).sha256


def test_a_batch_of_robots_acts_as_each_alone(packed: Path, bundle_of: BundleOf) -> None:
    policy = BatchPolicy(read_packed(packed / "model.safetensors"), STATE, seed=5)
    runners = [load_policy(bundle_of("flow"), seed=5 + row, limits=NO_LIMITS) for row in range(2)]
    seen = states(2, 12)
    for episode in range(2):
        policy.reset()
        for runner in runners:
            runner.reset()
        for tick in range(episode, 12, 3):  # the flow policy plays 3 of its 4 actions
            chunk = policy.chunk({"observation.state": seen[tick], "task": seen[0]})
            for row, runner in enumerate(runners):
                alone = [runner.step(seen[tick, row]) for _ in range(3)]
                assert np.allclose(chunk[row, :3], alone, rtol=0, atol=1e-6), (tick, row)


def test_the_state_of_a_recurrent_policy_lasts_until_the_reset(
    recurrent_bundle: Path, tmp_path: Path
) -> None:
    packed = read_packed(write_lerobot(recurrent_bundle, tmp_path / "it") / "model.safetensors")
    policy = BatchPolicy(packed, {"observation.state": (4,)})
    runner, seen = load_policy(recurrent_bundle, limits=NO_LIMITS), states(1, 5)[..., :4]
    for _ in range(2):
        policy.reset()
        runner.reset()
        for now in seen:
            found = policy.chunk({"observation.state": now})
            assert found[0, 0].tolist() == runner.step(now[0]).tolist()


def test_noise_that_is_given_takes_the_place_of_the_policys(
    packed: Path, bundle_of: BundleOf
) -> None:
    files = read_packed(packed / "model.safetensors")
    noise = np.random.default_rng(4).normal(size=(1, 4, 2)).astype(np.float32)
    seen = states(1, 1)[0]
    wanted = OnnxPolicy(files.contract, files.model, "here").predict(seen, noise)
    found = BatchPolicy(files, STATE).chunk({"observation.state": seen}, noise)
    assert found.tobytes() == wanted.tobytes()
    other = BatchPolicy(files, STATE).chunk({"observation.state": seen})
    assert np.abs(other - wanted).max() > 0.01
    with pytest.raises(TrimtabError, match="noise: has shape"):
        BatchPolicy(files, STATE).chunk({"observation.state": seen}, noise[:, :3])


def test_a_flat_observation_may_be_several_features(packed: Path) -> None:
    files, seen = read_packed(packed / "model.safetensors"), states(1, 1)[0]
    split = {"observation.state": (2,), "observation.environment_state": (4,)}
    batch = {"observation.environment_state": seen[:, 2:], "observation.state": seen[:, :2]}
    found = BatchPolicy(files, split).chunk(batch)
    assert found.tobytes() == BatchPolicy(files, STATE).chunk({"observation.state": seen}).tobytes()


def test_pictures_histories_and_inputs_come_as_lerobot_has_them(
    parts_bundle: Path, tmp_path: Path
) -> None:
    folder = write_lerobot(parts_bundle, tmp_path / "out")
    features = json.loads((folder / "config.json").read_text())["input_features"]
    assert features == {
        "observation.state": {"type": "STATE", "shape": [3]},
        "observation.images.picture": {"type": "VISUAL", "shape": [3, 2, 2]},
    }
    shapes = {name: tuple(one["shape"]) for name, one in features.items()}
    files = read_packed(folder / "model.safetensors")
    policy = BatchPolicy(files, shapes, inputs={"guidance": 3.0})
    runner = load_policy(parts_bundle, limits=NO_LIMITS)
    runner.reset(guidance=3.0)
    generator = np.random.default_rng(6)
    for tick in range(4):
        state = generator.normal(size=3).astype(np.float32)
        picture = generator.integers(0, 256, (2, 2, 3), np.uint8)
        planes = (picture.astype(np.float32) / 255).transpose(2, 0, 1)
        batch = {"observation.state": state[None], "observation.images.picture": planes[None]}
        chunk = policy.chunk(batch)
        for place in range(2):
            action = runner.step({"state": state, "picture": picture})
            assert chunk[0, place].tobytes() == action.tobytes(), (tick, place)
    with pytest.raises(TrimtabError, match="from 0 to 1"):
        policy.chunk({**batch, "observation.images.picture": 255 * planes[None]})
    with pytest.raises(TrimtabError, match="n_action_steps=1: the policy was trained to play 2"):
        BatchPolicy(files, shapes, act_steps=1)
    with pytest.raises(TrimtabError, match="no input 'guide'"):
        BatchPolicy(files, shapes, inputs={"guide": 3.0})


def test_what_does_not_fit_is_refused(packed: Path, bundle_of: BundleOf, tmp_path: Path) -> None:
    tensors = safetensors.numpy.load_file(packed / "model.safetensors")
    path = tmp_path / "model.safetensors"

    def written(**changed: Any) -> Path:
        found = {**tensors, **{name.replace("_", "."): part for name, part in changed.items()}}
        kept = {name: part for name, part in found.items() if part is not None}
        path.write_bytes(safetensors.numpy.save(kept))
        return path

    flipped = tensors["policy.onnx"].copy()
    flipped[100] ^= 1
    for wrong, said in (
        ({"policy_onnx": flipped}, "was changed"),
        ({"policy_onnx": None}, "was changed"),
        ({"config_json": None}, "holds no bundle"),
        ({"x": flipped}, "was changed"),
        ({"config_json": np.zeros(3, np.float32)}, "holds no bundle"),
    ):
        with pytest.raises(TrimtabError, match=said):
            read_packed(written(**wrong))
    with pytest.raises(TrimtabError, match="cannot be read"):
        read_packed(tmp_path / "absent")
    files = read_packed(packed / "model.safetensors")
    for features, steps, said in (
        ({"observation.state": (5,)}, 3, "input_features"),
        (STATE, 0, "n_action_steps=0"),
        (STATE, 5, "n_action_steps=5"),
    ):
        with pytest.raises(TrimtabError, match=said):
            BatchPolicy(files, features, act_steps=steps)
    policy = BatchPolicy(files, STATE, act_steps=1)  # it reads no past, so it may decide each tick
    for batch, said in (
        ({"observation.images.top": np.zeros((1, 6))}, "lacks observation.state"),
        ({"observation.state": np.zeros((1, 7))}, "has shape"),
        ({"observation.state": np.full((1, 6), np.nan)}, "NaN"),
    ):
        with pytest.raises(TrimtabError, match=said):
            policy.chunk(batch)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(TrimtabError, match="holds other files"):
        write_lerobot(bundle_of("flow"), tmp_path / "mine")


def test_the_command_writes_it(bundle_of: BundleOf, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert run(["export", f"run={bundle_of('flow')}", f"out={out}", "as=lerobot"]) == 0
    assert capsys.readouterr().out.startswith(f"lerobot: {out}; golden rows replay within")
    runner = load_policy(bundle_of("flow"), deterministic=True, limits=NO_LIMITS)
    policy = BatchPolicy(read_packed(out / "model.safetensors"), STATE, deterministic=True)
    seen = states(1, 1)[0]
    chunk = policy.chunk({"observation.state": seen})
    assert np.allclose(chunk[0, 0], runner.step(seen[0]), rtol=0, atol=1e-6)


def test_lerobot_finds_the_plug_in_by_its_name(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "plugin"
    subprocess.run(["cp", "-r", root / "docs/examples/lerobot_policy_trimtab", source], check=True)
    build = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=True
    )
    text = (source / done.stdout.splitlines()[-1] / "METADATA").read_text()
    assert HeaderParser().parsestr(text)["Name"] == "lerobot_policy_trimtab"  # bars, no hyphens
    kinds = ("configuration", "modeling", "processor")
    names = {path.name for path in (source / "lerobot_policy_trimtab").glob("*.py")}
    assert names == {"__init__.py", *(f"{kind}_trimtab.py" for kind in kinds)}


JOINTS = [f"joint_{number}.{kind}" for number in range(3) for kind in ("pos", "vel")]
COMMANDS = ["joint_0.pos", "joint_1.pos"]


class Arm:
    """The methods of LeRobot's ``Robot`` that are used, with keys in another order."""

    def __init__(self) -> None:
        self.values = {"top": np.zeros((4, 4, 3), np.uint8)}
        self.values |= {name: 0.1 * place for place, name in reversed(list(enumerate(JOINTS)))}
        self.commands = list(reversed(COMMANDS))
        self.sent: list[dict[str, float]] = []

    @property
    def observation_features(self) -> dict[str, Any]:
        return {k: v.shape if isinstance(v, np.ndarray) else float for k, v in self.values.items()}

    @property
    def action_features(self) -> dict[str, Any]:
        return dict.fromkeys(self.commands, float)

    def get_observation(self) -> dict[str, Any]:
        return dict(self.values)

    def send_action(self, action: dict[str, float]) -> Mapping[str, float]:
        self.sent.append(action)
        self.values |= action
        return action


@pytest.fixture
def named(copy_of: BundleOf, reseal: Callable[..., None]) -> Path:
    """The flow policy, with names of a robot's joints."""
    folder = copy_of("flow")
    config = json.loads((folder / CONFIG).read_text())
    config["inputs"]["obs"]["order"], config["outputs"]["action"]["order"] = JOINTS, COMMANDS
    reseal(folder, config={key: config[key] for key in ("inputs", "outputs")})
    return folder


def test_a_robot_of_lerobot_is_driven_by_a_bundle_and_by_a_server(named: Path) -> None:
    runner = load_policy(named, limits=NO_LIMITS)
    seen, expected = {name: 0.1 * place for place, name in enumerate(JOINTS)}, []
    for _ in range(7):
        action = runner.step([seen[name] for name in JOINTS])
        expected.append(dict(zip(COMMANDS, action.tolist(), strict=True)))
        seen |= expected[-1]
    with running(named) as server:
        for place in (named, server.address):
            arm = Arm()
            with pytest.raises(TrimtabError, match="states no limits"):
                connect(arm, place)
            policy, link = connect(arm, place, limits=NO_LIMITS)
            assert link.position().tolist() == np.float32([0.0, 0.2]).tolist()
            policy.reset(action=link.position())
            report = control_loop(policy, link.observe, link.act, ticks=7, rate=10.0)
            policy.close()
            assert report.played == 7 and arm.sent == expected


def test_a_config_in_place_of_the_robot_is_refused_in_one_line(named: Path) -> None:
    class ArmConfig:
        port = "/dev/ttyACM0"

    with pytest.raises(TrimtabError, match=r"ArmConfig is no Robot .* and not its config") as told:
        connect(ArmConfig(), named, limits=NO_LIMITS)
    assert "\n" not in str(told.value)


def test_names_that_do_not_fit_are_refused(named: Path, bundle_of: BundleOf) -> None:
    config = read_files(named)[0]
    arm = Arm()
    arm.commands.append("gripper.pos")
    with pytest.raises(TrimtabError, match=r"does not command the robot's gripper\.pos"):
        LeRobotLink(arm, config)
    for names, said in (
        ({"joint_2.vel": "elbow"}, "no elbow in its observation; there are: top, joint_2"),
        ({"joint_2.vel": "top"}, "top is a picture"),
        ({"joint_2.vel": "joint_2.pos"}, "are one key"),
        ({"joint_9.vel": "joint_2.pos"}, "has no entry joint_9"),
        ({"joint_0.pos": "joint_0.vel"}, "are one key"),
    ):
        with pytest.raises(TrimtabError, match=said):
            LeRobotLink(Arm(), config, names)
    with pytest.raises(TrimtabError, match="has no obs_names"):
        connect(Arm(), bundle_of("flow"))
    arm = Arm()
    link = LeRobotLink(arm, config)
    arm.values["joint_1.vel"] = np.zeros(2)
    with pytest.raises(TrimtabError, match="is no number"):
        link.observe()
    del arm.values["joint_1.vel"]
    with pytest.raises(TrimtabError, match=r"gave no joint_1\.vel"):
        link.observe()
    assert arm.sent == []
