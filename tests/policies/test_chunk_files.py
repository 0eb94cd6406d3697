"""Diffusion Policy's files and LeRobot's folders act as numpy says; what is unread is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from omegaconf import OmegaConf

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.benchmarks.training.shapes import spec_of
from trimtab.envs.registry import get_spec
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Agent, PolicyInputs
from trimtab.policies.bundle.adjusting import adjusted
from trimtab.policies.bundle.bundle import Bundle, load_bundle, make_config
from trimtab.policies.bundle.lerobot import write_lerobot
from trimtab.policies.bundle.limits import NO_LIMITS
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.imports.actors import Unsaid
from trimtab.policies.imports.weights import read_actor
from trimtab.policies.kinds.action_transformer import ActionTransformerPolicy
from trimtab.policies.robot.delayed import Latency, Timing
from trimtab.policies.robot.modes import RecedingHorizon
from trimtab.policies.runtime import load_policy
from trimtab.types import PolicySpec

files = load_module(Path(__file__).with_name("chunk_files.py"))


@pytest.mark.parametrize("example", files.CASES)
def test_acts_as_numpy_says(example: str, tmp_path: Path) -> None:
    write, act, size = files.CASES[example]
    actor, library = read_actor(write(tmp_path / "it"), Unsaid())
    low, high = ([-50.0] * 2, [50.0] * 2) if actor.limits is None else actor.limits
    spec = PolicySpec(
        size * actor.history, actor.horizon, 2, tuple(low), tuple(high), history=actor.history
    )
    policy = actor.policy(spec)
    torch.manual_seed(1)
    noise, obs = policy.sample_noise(16), files.observations(16, size)
    given = torch.from_numpy(obs if actor.history > 1 else obs[:, -1])
    with torch.no_grad():
        ours = policy(given, noise).numpy()
    theirs = act(given.numpy().astype("f8"), noise.numpy().astype("f8"))
    np.testing.assert_allclose(ours, theirs, atol=5e-5)
    assert np.ptp(ours, axis=0).min() > 0.05 and example.startswith(library)


def refused(path: Path, unsaid: Unsaid | None = None) -> str:
    with pytest.raises(TrimtabError) as error:
        actor, _ = read_actor(path, unsaid or Unsaid())
        low, high = (-1.0,) * actor.action_dim, (1.0,) * actor.action_dim
        obs = actor.obs_dim * actor.history
        spec = PolicySpec(obs, actor.horizon, actor.action_dim, low, high, history=actor.history)
        actor.policy(spec)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


STEPS = files.DP_STEPS
CLEAN_DDIM = STEPS | {"_target_": "x.DDIMScheduler", "prediction_type": "sample"}


@pytest.mark.parametrize(
    ("without", "policy", "words"),
    [
        (
            "",
            {"_target_": "x.DiffusionUnetHybridImagePolicy"},
            "and no DiffusionUnetHybridImagePolicy",
        ),
        ("", {"obs_as_global_cond": False}, "obs_as_global_cond: False"),
        ("", {"horizon": "${horizon}"}, "cfg does not say policy.horizon (it has ${horizon})"),
        ("", {"num_inference_steps": 4}, "takes 4 of 8 steps with DDPM"),
        ("", {"noise_scheduler": STEPS | {"variance_type": "learned"}}, "variance_type: learned"),
        ("", {"noise_scheduler": STEPS | {"_target_": "x.PNDMScheduler"}}, "scheduler (PNDM)"),
        ("", {"noise_scheduler": STEPS | {"prediction_type": "v_prediction"}}, "v_prediction"),
        ("", {"noise_scheduler": STEPS | {"beta_schedule": "sigmoid"}}, "beta_schedule"),
        ("", {"n_action_steps": 9}, "plays 9 actions of the 3"),
        ("", {"horizon": 5}, "a chunk of 5 actions cannot be halved"),
        ("", {"horizon": 2**40}, "plays 2 actions of"),
        ("", {"n_obs_steps": 3}, "have 2 and 9"),
        ("normalizer.params_dict.action.scale", {}, "has no statistics normalizer.params_dict.act"),
        ("", {"eta": 0.5}, "hands eta on to its scheduler"),
        ("", {"noise_scheduler": CLEAN_DDIM}, "takes 8 of 8 steps with DDIM for a network that"),
        ("", {"noise_scheduler": STEPS | {"variance_type": "fixed_small_log"}}, "fixed_small_log"),
        ("", {"noise_scheduler": STEPS | {"clip_sample_range": "wide"}}, "is damaged, or not what"),
        ("down_modules.0.0.blocks.0.block.0", {}, "what it should be ('down_modules.0.0.blocks"),
        ("mid_modules.1.blocks.1.block.1.weight", {}, "are not those of its kind (Error(s) in"),
    ],
)
def test_other_files_of_diffusion_policy_are_refused(
    without: str, policy: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refused(files.diffusion_policy(tmp_path / "latest.ckpt", without, **policy))


def test_what_a_scheduler_leaves_out_is_as_diffusers_has_it(tmp_path: Path) -> None:
    said = {key: value for key, value in STEPS.items() if not key.startswith("beta_")}
    actor, _ = read_actor(files.diffusion_policy(tmp_path / "it", noise_scheduler=said), Unsaid())
    low, high = (-1.0,) * 2, (1.0,) * 2
    policy = actor.policy(PolicySpec(6, actor.horizon, 2, low, high, history=2))
    stated = [policy.config()[f"beta_{name}"] for name in ("schedule", "start", "end")]
    assert stated == ["linear", 0.0001, 0.02]
    assert policy.config()["sampler"] == "ddpm"
    assert adjusted(policy, {"sampler": "ddim"}).config()["sampler"] == "ddim"


def entries_of(root: Path, heading: str) -> list[str]:
    """Return the names in the first column of a table of the page."""
    page = (root / "docs" / "imported-weights.md").read_text(encoding="utf-8")
    rows = page.partition(f"| {heading} | says |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_the_entries_of_the_page_are_those_that_are_read(root: Path, tmp_path: Path) -> None:
    """What is nonsense there is refused; what is only looked at for truth cannot be."""
    only_true = {"noise_scheduler.clip_sample", "clip_sample", "pre_norm"}
    told = set(entries_of(root, "Diffusion Policy, `cfg.policy`"))
    assert len(told) == 17 and {"horizon", "noise_scheduler.beta_end"} <= told
    for place, name in enumerate(sorted(told - only_true)):
        outer, _, inner = name.rpartition(".")
        changed = {outer: files.DP_POLICY[outer] | {inner: "?"}} if outer else {name: "?"}
        refused(files.diffusion_policy(tmp_path / f"{place}.ckpt", **changed))
    told = set(entries_of(root, "LeRobot, `config.json`"))
    of_act = {"n_heads", "feedforward_activation", "pre_norm", "temporal_ensemble_coeff"}
    assert len(told) == 19 and of_act <= told
    for name in sorted(told - only_true - {"temporal_ensemble_coeff"}):
        make = files.lerobot_act if name in of_act else files.lerobot_diffusion
        assert "\n" not in refused(make(tmp_path / name, **{name: "?"}))


PICTURE = {"observation.images.top": {"type": "VISUAL", "shape": [3, 96, 96]}}


@pytest.mark.parametrize(
    ("without", "config", "words"),
    [
        ("", {"type": "smolvla"}, "is a policy 'smolvla' of LeRobot"),
        ("", {"input_features": files.FEATURES | PICTURE}, "that reads observation.environment_st"),
        ("policy_preprocessor.json", {}, "migrate_policy_normalization"),
        ("observation.state.max", {}, "has no statistics min and max"),
        ("action.std", {}, "normalises action by MEAN_STD, and has no statistics mean and std"),
        ("", {"noise_scheduler_type": "DPM"}, "scheduler (DPM)"),
        ("", {"n_obs_steps": 1}, "have 2 and 5"),
        ("", {"horizon": "four"}, "is damaged, or not what it should be"),
        ("", {"num_inference_steps": 9}, "from 1 to 8"),
    ],
)
def test_other_folders_of_lerobot_are_refused(
    without: str, config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refused(files.lerobot_diffusion(tmp_path / "folder", without, **config))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"n_action_steps": None}, "plays None actions of the 5"),
        ({"n_obs_steps": "one"}, "by one observations"),
        ({"feedforward_activation": "glu"}, "must be relu or gelu"),
    ],
)
def test_settings_of_act_that_are_none_are_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in refused(files.lerobot_act(tmp_path / "folder", **config))


def test_act_has_the_layers_that_are_there_and_its_ensemble_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = files.lerobot_act(
        tmp_path / "it", n_encoder_layers=2**30, n_action_steps=1, temporal_ensemble_coeff=0.01
    )
    actor, _ = read_actor(folder, Unsaid())
    policy = actor.policy(PolicySpec(5, actor.horizon, 2, (-1.0,) * 2, (1.0,) * 2))
    assert policy.config()["encoders"] == 2 and policy.config()["decoders"] == 1
    assert "was played with temporal_ensemble_coeff=0.01" in caplog.text


def test_a_step_that_is_not_known_or_statistics_elsewhere_are_refused(tmp_path: Path) -> None:
    folder = files.lerobot_diffusion(tmp_path / "folder")
    chain = folder / "policy_postprocessor.json"
    steps = json.loads(chain.read_text())
    kept = steps["steps"][1]["state_file"]
    for name in (f"../folder/{kept}", ""):
        steps["steps"][1]["state_file"] = name
        chain.write_text(json.dumps(steps))
        assert "no file of statistics beside it" in refused(chain.parent)
    steps["steps"][0]["registry_name"] = "relative_actions_processor"
    chain.write_text(json.dumps(steps))
    assert "has the steps relative_actions_processor" in refused(folder)
    assert "take them out of the contract" in refused(folder, Unsaid(activation="elu"))


def test_a_checkpoint_becomes_a_bundle_that_plays_its_chunks(tmp_path: Path) -> None:
    scheduler = STEPS | {"_target_": "x.DDIMScheduler"}
    path = files.diffusion_policy(tmp_path / "latest.ckpt", noise_scheduler=scheduler)
    contract = tmp_path / "contract.yaml"
    OmegaConf.save({"control_rate": 10, "action": {"names": ["x", "y"]}}, contract)
    settings = {"sampler": "ddim", "sampling_steps": 1}
    errors = export_policy(
        str(path), str(tmp_path / "bundle"), contract=str(contract), settings=settings
    )
    assert max(errors.values()) < 1e-4
    bundle = load_bundle(tmp_path / "bundle")
    assert bundle.policy.kind == "unet_diffusion" and bundle.config["chunking"]["act_steps"] == 2
    steps = {"sampling_steps": {"from": files.LEVELS, "to": 1}}
    assert bundle.config["changed"] == steps  # and not the sampler, which is the file's own
    withhold_weights(tmp_path / "bundle", tmp_path / "box")
    box = load_bundle(tmp_path / "box").policy
    spec = bundle.policy.spec
    assert box.spec == spec and spec.every_tick
    with pytest.raises(TrimtabError, match="here it would see one of each 2"):
        write_lerobot(tmp_path / "bundle", tmp_path / "lerobot")
    # Clipped actions are from -1 to 1 in the network's units: nothing else has to bound them.
    ends = [(one - files.ACTION_OFFSET) / files.ACTION_SCALE for one in (-1, 1)]
    np.testing.assert_allclose([spec.action_low, spec.action_high], ends, rtol=1e-5)
    # On the robot: the graph, of the observations of the last two ticks.
    runner = load_policy(tmp_path / "bundle", limits=NO_LIMITS, deterministic=True)
    first, second, third = files.observations(2, files.OBS).reshape(-1, files.OBS)[:3]
    played = np.array([runner.step(one) for one in (first, second, third)])
    seen = np.array([[first, first], [second, third]], "f8")
    planned = files.diffusion_policy_acts(seen, np.zeros((2, files.HORIZON, 2)), steps=1)
    np.testing.assert_allclose(played, [*planned[0, :2], planned[1, 0]], atol=5e-5)


def test_a_folder_of_lerobot_replaces_its_own_bundle_alone(tmp_path: Path) -> None:
    whole, lacking = tmp_path / "whole.yaml", tmp_path / "lacking.yaml"
    OmegaConf.save({"control_rate": 10, "action": {"low": -1, "high": 1}}, whole)
    OmegaConf.save({"control_rate": 10}, lacking)
    folder, other = files.lerobot_act(tmp_path / "a"), files.lerobot_diffusion(tmp_path / "b")
    export_policy(str(folder), str(tmp_path / "bundle"), contract=str(whole))
    for source, told in ((folder, "does not say action.low"), (other, "another bundle is there")):
        with pytest.raises(TrimtabError, match=told):
            export_policy(str(source), str(tmp_path / "bundle"), contract=str(lacking))
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(TrimtabError, match=f"give the folder, run={folder}$"):
            export_policy(str(folder / name), str(tmp_path / "c"), contract=str(whole))


@pytest.mark.parametrize("by_ticks", [False, True])
def test_a_history_of_ticks_has_what_was_seen_within_chunks(by_ticks: bool) -> None:
    seen: list[Any] = []

    def decide(obs: Any, noise: Any) -> Any:
        seen.append(obs[0, :, 0].tolist())
        return np.zeros((1, 3, 1), np.float32)

    inputs = PolicyInputs((0,), history=2, every_tick=by_ticks)
    robot = Agent(decide, 1, inputs, act_steps=3)
    timing = Timing(lambda: RecedingHorizon(3), Latency(), 3, 3, 0.1)
    simulated = timing.over(Agent(decide, 1, inputs, act_steps=3))
    robot.reset(seeds=[0])
    simulated.reset(seeds=[0])
    for tick in range(7):
        now = np.full((1, 1), tick, np.float32)
        robot.step(now)
        simulated.act(now)
    later = [[2, 3], [5, 6]] if by_ticks else [[0, 3], [3, 6]]
    assert seen == [both for both in [[0, 0], *later] for _ in range(2)]
    if by_ticks:
        with pytest.raises(TrimtabError, match="last 2 control ticks, .* or trimtab evaluate"):
            robot.act(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("by_ticks", [False, True])
def test_a_policy_that_reads_each_tick_is_judged_by_ticks(by_ticks: bool) -> None:
    task = get_spec("gym/InvertedPendulum-v5")
    shapes = replace(spec_of(task, 2).with_history(2), every_tick=by_ticks)
    policy = ActionTransformerPolicy(shapes, width=8, heads=2, feedforward=8, encoders=1).eval()
    contract: dict[str, Any] = {
        "env": task.id,
        "control_rate": task.control_rate,
        "act_steps": 2,
        "training": {},
    }
    judge = BundleJudge(Bundle(policy, make_config(policy, contract), ""), task.id, {})
    timed = judge.timed()
    assert bool(timed) == by_ticks
    timing = judge.timing(**timed) if timed else None
    scores = judge.judge(episodes=1, seed=0, deterministic=True, timing=timing)
    assert scores.episodes[0].length > 0
