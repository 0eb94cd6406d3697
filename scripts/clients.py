"""Let other projects' own clients read what Trimtab writes, each in an environment of its own.

python scripts/clients.py benchmarks/results/robots/clients.txt [FOLDER]

writes what each of them found. onnxruntime runs a bundle's graph on its golden rows; the clients of
openpi and vla-eval ask ``trimtab serve``; LeRobot loads a folder of ``trimtab export as=lerobot``
by its own factory, and its own ``lerobot-rollout`` drives a robot by it; vla-eval counts the
episodes of ``trimtab evaluate`` again. Every number is compared with ours.

It needs Trimtab with its extra ``serve``, ``python3.12`` besides 3.11, a package index, and about
6 GB: LeRobot's torch is one for CUDA. The environments are made in FOLDER, and used again if they
are there; without FOLDER, they are thrown away.
"""

# Below, a client's side imports what only its own environment has; the script starts itself there.
from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PLUG_IN = ROOT / "docs" / "examples" / "lerobot_policy_trimtab"
JUDGED = ROOT / "benchmarks/results/arena/bases/pusht/PushT-v0/bc/aa09ec7dfd/seed0"
MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
JOINTS = [f"{motor}.pos" for motor in MOTORS]
TICKS = 20
ENVIRONMENTS = {
    "onnxruntime": ("3.11", ("onnxruntime==1.31.1", "safetensors")),
    "openpi": ("3.11", ("openpi-client==0.1.2", "numpy<2", "typing_extensions")),
    "vla_eval": ("3.11", ("vla-eval==0.8.0",)),
    "lerobot": ("3.12", ("lerobot[dataset]==0.6.1", "onnxruntime", "msgpack", "websockets>=17")),
}


def say(text: str) -> None:
    """Write a line of the output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def compare(what: str, found: Any, ours: Any, allowed: float = 0.0) -> None:
    """Write the largest difference of two arrays; end the client's side if it is too large."""
    import numpy as np

    found, ours = np.asarray(found, np.float64), np.asarray(ours, np.float64)
    if found.shape != ours.shape:
        raise SystemExit(f"{what}: has shape {found.shape}, ours {ours.shape}")
    worst = float(np.abs(found - ours).max())
    say(f"  {what}: {found.shape}, largest difference from ours {worst:.1e}")
    if not worst <= allowed:
        raise SystemExit(f"{what}: differs by more than {allowed:g}")


# The clients' sides. Each is given the folder of what is to be read, and the server's address.


def onnxruntime(work: Path, address: str) -> None:
    """Run ``policy.onnx`` on the golden rows, as safetensors reads them."""
    import onnxruntime as ort
    from safetensors.numpy import load_file

    golden = load_file(work / "bundle" / "golden.safetensors")
    session = ort.InferenceSession(work / "bundle" / "policy.onnx")
    contract = json.loads(session.get_modelmeta().custom_metadata_map["trimtab"])
    say(f"  names in the graph's metadata: {contract['inputs']['obs']['order']}")
    given = {port.name: golden[port.name] for port in session.get_inputs()}
    compare("golden actions", session.run(["action"], given)[0], golden["action"], 1e-4)


def openpi(work: Path, address: str) -> None:
    """Ask by openpi's client, and play chunks by its broker."""
    import numpy as np
    from openpi_client.action_chunk_broker import ActionChunkBroker
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    host, _, port = address.rpartition(":")
    ours = np.load(work / "ours.npz")
    policy = WebsocketClientPolicy(host, int(port))
    horizon = policy.get_server_metadata()["act_steps"]
    answer = policy.infer({"obs": ours["obs"][0]})
    arrays = {name: part for name, part in answer.items() if isinstance(part, np.ndarray)}
    if any(len(part) != horizon for part in arrays.values()):
        raise SystemExit("an array has no chunk axis")
    say(f"  arrays in an answer, all with the chunk's axis: {sorted(arrays)}")
    compare("first chunk", answer["actions"], ours["actions"][:horizon])
    broker = ActionChunkBroker(WebsocketClientPolicy(host, int(port)), horizon)
    played = [broker.infer({"obs": obs})["actions"] for obs in ours["obs"]]
    compare("actions of its ActionChunkBroker", played, ours["actions"])


def vla_eval(work: Path, address: str) -> None:
    """Ask by vla-eval's connection, and count the episodes of a result of ours by its collector."""
    import numpy as np
    from vla_eval.connection import Connection
    from vla_eval.results.collector import ResultCollector

    ours = np.load(work / "ours.npz")

    async def play() -> list[Any]:
        async with Connection(address) as server:
            say(f"  hello: protocol {server.server_info['protocol_version']}")
            await server.start_episode({"task": {"name": "reach"}})
            return [(await server.act({"obs": obs}))["actions"] for obs in ours["obs"]]

    compare("actions of its Connection", asyncio.run(play()), ours["actions"])
    written = json.loads((work / "judged" / "vla_eval.json").read_text())
    collector = ResultCollector(written["benchmark"], written["mode"], written["metric_keys"])
    for task in written["tasks"]:
        for episode in task["episodes"]:
            collector.record(task["task"], episode)
    counted: dict[str, Any] = dict(collector.get_benchmark_result(written["config"]))
    for theirs, own in ((counted, written), (counted["tasks"][0], written["tasks"][0])):
        if theirs.keys() != own.keys():
            raise SystemExit(f"keys of the result differ: {sorted(theirs.keys() ^ own.keys())}")
        means = [name for name in own if name.startswith(("mean_", "avg_"))]
        compare(f"{', '.join(means)} of its ResultCollector", [theirs[name] for name in means],
                [own[name] for name in means], 1e-4)  # fmt: skip


def lerobot(work: Path, address: str) -> None:
    """Load the folder by LeRobot's factory, and drive a robot by its rollout and by our link."""
    import logging

    import numpy as np
    import torch
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies import get_policy_class, make_pre_post_processors
    from lerobot.robots import Robot, RobotConfig
    from lerobot.scripts import lerobot_rollout
    from lerobot.utils.import_utils import register_third_party_plugins

    from trimtab.policies.lerobot import connect
    from trimtab.policies.robot.loop import control_loop
    from trimtab.policies.runtime import NO_LIMITS, load_policy

    ours = np.load(work / "ours.npz")
    logging.disable(logging.WARNING)
    register_third_party_plugins()
    folder = str(work / "lerobot")
    config = PreTrainedConfig.from_pretrained(folder)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=folder)
    say(f"  loaded by its factory: {type(policy).__name__} of {config.type}")
    policy.reset()
    played = [
        after(policy.select_action(before({"observation.state": torch.tensor(obs)})))[0].numpy()
        for obs in ours["obs"]
    ]
    compare("actions of select_action", played, ours["actions"])
    rows = {"observation.state": torch.tensor(ours["golden_obs"])}
    chunks = policy.predict_action_chunk(rows, noise=torch.tensor(ours["golden_noise"]))
    compare(
        "predict_action_chunk of the golden rows and noise", chunks, ours["golden_action"], 1e-4
    )

    @RobotConfig.register_subclass("arm")
    @dataclass(kw_only=True)
    class ArmConfig(RobotConfig):
        pass

    class Arm(Robot):
        """An arm that stands at once where it is sent; it keeps what it saw and was sent."""

        config_class, name = ArmConfig, "arm"
        seen: list[dict[str, float]] = []
        sent: list[dict[str, float]] = []
        is_connected = is_calibrated = True
        observation_features = action_features = dict.fromkeys(JOINTS, float)

        def __init__(self, config: RobotConfig) -> None:
            super().__init__(config)
            self.at = {joint: 0.1 * place for place, joint in enumerate(JOINTS)}

        def connect(self, calibrate: bool = True) -> None:
            Arm.seen, Arm.sent = [], []

        def calibrate(self) -> None:
            return

        configure = disconnect = calibrate

        def get_observation(self) -> dict[str, float]:
            Arm.seen.append(dict(self.at))
            return dict(self.at)

        def send_action(self, action: dict[str, float]) -> dict[str, float]:
            Arm.sent.append(dict(action))
            self.at |= action
            return action

    # LeRobot finds a robot beside its settings, in the module that these are of.
    sys.modules["__main__"].Arm = Arm  # type: ignore[attr-defined]
    sys.argv = [
        "lerobot-rollout", "--robot.type=arm", f"--policy.path={folder}", "--duration=2",
        f"--robot.calibration_dir={work}", "--device=cpu", "--strategy.type=base", "--fps=20",
        "--play_sounds=false", "--return_to_initial_position=false",
    ]  # fmt: skip
    lerobot_rollout.main()
    runner = load_policy(work / "bundle", limits=NO_LIMITS)
    expected = [runner.step([seen[joint] for joint in JOINTS]) for seen in Arm.seen[1:]]
    sent = [[action[joint] for joint in JOINTS] for action in Arm.sent]
    if len(sent) < TICKS:
        raise SystemExit(f"lerobot-rollout sent {len(sent)} actions in two seconds; run this again")
    compare(
        "first actions that its lerobot-rollout sent to a Robot", sent[:TICKS], expected[:TICKS]
    )

    for name, place in (("a bundle", work / "bundle"), ("a server", address)):
        arm = Arm(ArmConfig(calibration_dir=work))
        arm.connect()
        runner, link = connect(arm, place, limits=NO_LIMITS)
        runner.reset(action=link.position())
        Arm.seen.clear()
        report = control_loop(runner, link.observe, link.act, ticks=TICKS)
        runner.close()
        again = load_policy(work / "bundle", limits=NO_LIMITS)
        wanted = [again.step([seen[joint] for joint in JOINTS]) for seen in Arm.seen]
        if report.skipped:
            raise SystemExit("the machine is too busy: ticks were left out; run this again")
        moved = [[action[joint] for joint in JOINTS] for action in Arm.sent]
        compare(f"actions to a Robot through our link, by {name}", moved, wanted)


SIDES: dict[str, Callable[[Path, str], None]] = {
    "onnxruntime": onnxruntime, "openpi": openpi, "vla_eval": vla_eval, "lerobot": lerobot,
}  # fmt: skip


# Our side.


def write_what_is_read(work: Path) -> None:
    """Write a bundle, LeRobot's folder of it, what the policy does, and a judged policy's result.

    The policy has the joints of an SO-100 and weights as they are drawn; it draws noise.
    """
    import numpy as np
    import torch

    from trimtab.policies.bundle.bundle import save_bundle
    from trimtab.policies.bundle.lerobot import write_lerobot
    from trimtab.policies.bundle.onnx_policy import read_policy
    from trimtab.policies.kinds.flow import FlowPolicy
    from trimtab.policies.runtime import NO_LIMITS, load_policy
    from trimtab.types import PolicySpec

    torch.manual_seed(0)
    spec = PolicySpec(len(JOINTS), 8, len(JOINTS), (-100.0,) * 6, (100.0,) * 6)
    policy = FlowPolicy(spec, hidden=(32, 32), sampling_steps=4)
    contract = {
        "env": "data:so100", "control_rate": 20.0, "act_steps": 4,
        "obs_names": JOINTS, "action_names": JOINTS,
    }  # fmt: skip
    bundle = save_bundle(policy, work / "bundle", contract=contract)
    write_lerobot(bundle, work / "lerobot")
    runner, golden = load_policy(bundle, limits=NO_LIMITS), read_policy(bundle).golden
    obs = np.random.default_rng(0).normal(size=(TICKS, len(JOINTS))).astype(np.float32)
    np.savez(work / "ours.npz", obs=obs, actions=[runner.step(row) for row in obs],
             **{f"golden_{name}": rows for name, rows in golden.items()})  # fmt: skip
    judged = ("evaluate", f"policy={JUDGED}", "episodes=3", f"out={work / 'judged'}", "format=json")
    subprocess.run([*TRIMTAB, *judged], check=True, capture_output=True)


TRIMTAB = (sys.executable, "-m", "trimtab.benchmarks.cli.start")


def environment(name: str, folder: Path) -> Path:
    """Return the Python of a client's environment; make it if it is not there."""
    python, packages = ENVIRONMENTS[name]
    found = folder / name / "bin" / "python"
    if not found.exists():
        subprocess.run([f"python{python}", "-m", "venv", folder / name], check=True)
        extra = []
        if name == "lerobot":  # a copy, as building leaves files behind
            extra = [folder / "plug-in"]
            subprocess.run(["cp", "-r", PLUG_IN, *extra], check=True)
        pip = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages, *extra], check=True)
    return found


def main(out: Path, folder: Path) -> None:
    """Let each client read, and write what they say to ``out``."""
    lines = [f"trimtab {version('trimtab')}"]
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        write_what_is_read(work)
        for name in ENVIRONMENTS:
            python = environment(name, folder)
            # A server for each: its noise begins with each connection.
            serving = [*TRIMTAB, "serve", f"policy={work / 'bundle'}", "port=0"]
            with subprocess.Popen(serving, stdout=-1, text=True) as server:
                assert server.stdout is not None
                address = server.stdout.readline().split()[-1]
                own = {"PYTHONPATH": str(ROOT / "src")} if name == "lerobot" else {"PYTHONPATH": ""}
                done = subprocess.run(
                    [python, "-P", __file__, name, work, address],
                    env={**os.environ, **own, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                    stdout=-1, stderr=-1, text=True,
                )  # fmt: skip
                server.kill()
            lines += done.stdout.splitlines()
            if done.returncode:
                say("\n".join(lines))
                raise SystemExit(f"{name}: {done.stderr[-3000:]}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")
    say("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SIDES:
        names = [re.split(r"[<>=\[]", package)[0] for package in ENVIRONMENTS[sys.argv[1]][1]]
        versions = [f"{name} {version(name)}" for name in names]
        if sys.argv[1] == "lerobot":
            versions.append(f"torch {version('torch')}")
        python = ".".join(map(str, sys.version_info[:2]))
        say(f"{sys.argv[1]}: Python {python}, {', '.join(versions)}")
        SIDES[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
    elif len(sys.argv) in (2, 3):
        with tempfile.TemporaryDirectory() as thrown_away:
            main(Path(sys.argv[1]), Path(*sys.argv[2:] or [thrown_away]).absolute())
    else:
        raise SystemExit(__doc__)
