"""Hold what Diffusion Policy and LeRobot save and do beside what is read of it.

git clone --depth 1 https://github.com/real-stanford/diffusion_policy theirs
pip install --no-deps --target theirs dill einops lerobot==0.4.4 draccus==0.10.0 mergedeep \
    pyyaml-include==1.4.1 typing-inspect mypy-extensions toml jsonlines
PYTHONPATH=theirs python benchmarks/results/robots/chunk_libraries.py

Both draw their noise by torch; here they get ours in its place. LeRobot imports libraries of
pictures and of data sets that no policy of states calls: names without anything behind them do.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from omegaconf import OmegaConf

from trimtab.policies.imports.actors import Unsaid
from trimtab.policies.imports.weights import read_actor
from trimtab.types import PolicySpec

OBS, ENVIRONMENT, ACTIONS, ROWS = 5, 4, 2, 64
UNUSED = {"torchvision", "datasets", "accelerate", "deepdiff", "serial", "cv2"}
SCHEDULER = "diffusers.schedulers.scheduling_{0}.{1}Scheduler"


class Unused(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds libraries that are imported and never called."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the place of one of them."""
        known = name.partition(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return a module that has every name."""
        found: Any = mock.MagicMock(name=spec.name, __path__=[], __spec__=spec)
        return found  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


@contextmanager
def drawing(noise: torch.Tensor, path: bool) -> Iterator[None]:
    """Give out rows of noise for what is drawn."""
    draws = iter(noise.unbind(1) if path else [noise])
    with (
        mock.patch("torch.randn", lambda *_, **__: next(draws)),
        mock.patch("diffusers.schedulers.scheduling_ddpm.randn_tensor",
                   lambda *_, **__: next(draws)),
    ):  # fmt: skip
        yield


def diffusion_policy(folder: Path, sampler: str) -> tuple[Path, Callable[..., Any]]:
    """Save a checkpoint as its workspace does; return its actions for observations and noise."""
    import diffusion_policy
    import dill  # noqa: TID251 - it only writes here
    import hydra
    from diffusion_policy.model.common.normalizer import LinearNormalizer

    root = Path(next(iter(diffusion_policy.__path__)))
    config: Any = OmegaConf.load(root / "config" / "train_diffusion_unet_lowdim_workspace.yaml")
    for name in ("defaults", "hydra", "logging", "multi_run"):
        config.pop(name)
    config.task = {"name": "any", "obs_dim": OBS, "action_dim": ACTIONS, "keypoint_dim": 2}
    small = {"down_dims": [16, 32, 64], "diffusion_step_embed_dim": 16}
    evaluated = {"input_dim": ACTIONS, "local_cond_dim": None, "global_cond_dim": 2 * OBS}
    config.policy.model.update({**small, **evaluated})
    config.policy.n_action_steps = 8
    if sampler == "ddim":
        steps = config.policy.noise_scheduler
        steps.pop("variance_type")
        steps._target_ = SCHEDULER.format("ddim", "DDIM")
        config.policy.num_inference_steps = 8
    OmegaConf.resolve(config)
    policy = hydra.utils.instantiate(config.policy).eval()
    normalizer = LinearNormalizer()
    spread = torch.tensor([1, 3, 0.1, 1, 1e-6])
    data = {"obs": torch.randn(500, OBS) * spread + 2, "action": torch.randn(500, ACTIONS) * 3}
    normalizer.fit(data)
    policy.set_normalizer(normalizer)
    state, learner = policy.state_dict(), torch.optim.AdamW(policy.parameters())
    saved = {
        "cfg": config, "pickles": {"global_step": dill.dumps(3)},
        "state_dicts": {"model": state, "ema_model": state, "optimizer": learner.state_dict()},
    }  # fmt: skip
    torch.save(saved, folder / "latest.ckpt", pickle_module=dill)  # noqa: TID251

    def act(obs: torch.Tensor, noise: torch.Tensor) -> Any:
        with drawing(noise, sampler == "ddpm"):
            return policy.predict_action({"obs": obs})["action"]

    return folder / "latest.ckpt", act


def lerobot(folder: Path, kind: str) -> tuple[Path, Callable[..., Any]]:
    """Save a policy of LeRobot and its processors; return its actions."""
    from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.policies.act.modeling_act import ACTConfig, ACTPolicy
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionConfig, DiffusionPolicy
    from lerobot.policies.factory import make_pre_post_processors

    state, environment = "observation.state", "observation.environment_state"
    features = {
        "input_features": {
            state: PolicyFeature(FeatureType.STATE, (OBS,)),
            environment: PolicyFeature(FeatureType.ENV, (ENVIRONMENT,)),
        },
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (ACTIONS,))},
        "device": "cpu",
        "normalization_mapping": {
            "STATE": NormalizationMode.MIN_MAX, "ENV": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MIN_MAX,
        },
    }  # fmt: skip
    if kind == "act":
        policy = ACTPolicy(ACTConfig(dim_model=64, dim_feedforward=96, chunk_size=20,
                                     n_action_steps=10, **features))  # fmt: skip
    else:
        policy = DiffusionPolicy(DiffusionConfig(
            down_dims=(16, 32), horizon=16, n_action_steps=8, num_train_timesteps=20,
            noise_scheduler_type=kind, **features,
        ))  # fmt: skip
    sizes = {state: OBS, environment: ENVIRONMENT, "action": ACTIONS}
    statistics = {
        key: {"min": -torch.rand(size) - 1, "max": torch.rand(size) + 2,
              "mean": torch.randn(size), "std": torch.rand(size) + 1}
        for key, size in sizes.items()
    }  # fmt: skip
    before, after = make_pre_post_processors(policy.config, dataset_stats=statistics)
    for part in (policy, before, after):
        part.save_pretrained(folder)

    def act(obs: torch.Tensor, noise: torch.Tensor) -> Any:
        policy.eval().reset()
        for tick in range(obs.shape[1] if obs.ndim == 3 else 1):
            now = obs[:, tick] if obs.ndim == 3 else obs
            given = before({state: now[:, :OBS], environment: now[:, OBS:]})
            batch = {key: given[key] for key in (state, environment)}
            if kind != "act":  # as its select_action does, before it has to plan
                for key, part in batch.items():
                    policy._queues[key].append(part)
        with drawing(noise, kind == "DDPM"):
            return after(policy.predict_action_chunk(batch))

    return folder, act


CASES: dict[str, Callable[[Path], tuple[Path, Callable[..., Any]]]] = {
    "Diffusion Policy, DDPM of 100 steps": lambda folder: diffusion_policy(folder, "ddpm"),
    "Diffusion Policy, DDIM of 8 steps": lambda folder: diffusion_policy(folder, "ddim"),
    "LeRobot 0.4.4, diffusion, DDPM of 20 steps": lambda folder: lerobot(folder, "DDPM"),
    "LeRobot 0.4.4, diffusion, DDIM of 20 steps": lambda folder: lerobot(folder, "DDIM"),
    "LeRobot 0.4.4, act": lambda folder: lerobot(folder, "act"),
}


def main() -> None:
    """Print the largest difference of the actions for each of them."""
    sys.meta_path.insert(0, Unused())
    for seed, (name, save) in enumerate(CASES.items()):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(seed)
            path, act = save(Path(folder))
            actor, _ = read_actor(path, Unsaid())
            low, high = actor.limits or ((-99.0,) * ACTIONS, (99.0,) * ACTIONS)
            read = actor.history
            spec = PolicySpec(actor.obs_dim * read, actor.horizon, ACTIONS, low, high, history=read)
            policy = actor.policy(spec)
            shape = (ROWS, actor.obs_dim) if read == 1 else (ROWS, read, actor.obs_dim)
            obs, noise = torch.randn(shape), policy.sample_noise(ROWS)
            with torch.no_grad():
                theirs, ours = act(obs, noise), policy(obs, noise)
        largest = np.abs((ours[:, : theirs.shape[1]] - theirs).numpy()).max()
        sys.stdout.write(
            f"{name}: {policy.kind}, {ROWS} chunks of {theirs.shape[1]} actions from "
            f"{theirs.min():.2f} to {theirs.max():.2f}, largest difference {largest:.1e}\n"
        )


if __name__ == "__main__":
    main()
