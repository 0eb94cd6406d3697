"""Hold what rsl_rl, skrl and Brax save and do beside what is read of their files.

pip install --no-deps 'rsl-rl-lib==5.*' tensordict pyvers orjson skrl tensorboard brax
python benchmarks/results/robots/other_libraries.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from trimtab.policies.imports.actors import Unsaid
from trimtab.policies.imports.weights import read_actor
from trimtab.types import PolicySpec

OBS, ACTIONS = 12, 4
SEEN = np.random.default_rng(0).normal(1.0, [0.01] + [2.0] * (OBS - 1), (500, OBS)).astype("f4")
"""Observations; the first entry hardly varies."""


def rsl_rl(path: Path) -> Any:
    """Save a PPO of rsl_rl; return the actions of its actor."""
    from rsl_rl.algorithms.ppo import PPO
    from rsl_rl.models.mlp_model import MLPModel
    from tensordict import TensorDict

    obs = TensorDict({"policy": torch.from_numpy(SEEN)}, batch_size=[len(SEEN)])
    groups = {"actor": ["policy"], "critic": ["policy"]}
    width = {"class_name": "rsl_rl.modules.distribution:GaussianDistribution", "init_std": 0.5}
    actor, critic = (
        MLPModel(obs, groups, role, size, (32, 32), obs_normalization=True, distribution_cfg=given)
        for role, size, given in (("actor", ACTIONS, width), ("critic", 1, None))
    )
    actor.update_normalization(obs)
    learner = PPO(actor, critic, None)  # type: ignore[arg-type,unused-ignore]
    saved = {**learner.save(), "iter": 3, "infos": None}
    torch.save(saved, path)  # noqa: TID251 - as its runner does
    return actor.eval()(obs)


def skrl(path: Path) -> Any:
    """Save a PPO of skrl; return the means of its policy."""
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.resources.preprocessors.torch import RunningStandardScaler
    from skrl.utils.model_instantiators.torch import gaussian_model

    spaces = {
        "observation_space": gymnasium.spaces.Box(-np.inf, np.inf, (OBS,)),
        "action_space": gymnasium.spaces.Box(-np.inf, np.inf, (ACTIONS,)),
    }
    network = [{"name": "net", "input": "OBSERVATIONS", "layers": [32, 32], "activations": "elu"}]
    policy = gaussian_model(**spaces, device="cpu", network=network, output="ACTIONS")
    scaler = {"size": spaces["observation_space"], "device": "cpu"}
    settings = PPO_CFG(
        observation_preprocessor=RunningStandardScaler, observation_preprocessor_kwargs=scaler
    )
    agent = PPO(models={"policy": policy}, device="cpu", cfg=settings, **spaces)
    agent._observation_preprocessor(torch.from_numpy(SEEN), train=True)
    obs = agent._observation_preprocessor(torch.from_numpy(SEEN))
    means = policy.act({"observations": obs}, role="policy")[1]["mean_actions"]
    agent.save(str(path))
    return means


def brax(path: Path) -> Any:
    """Save parameters of Brax's PPO; return the actions of its deterministic policy."""
    import jax
    from brax.io import model
    from brax.training.acme import running_statistics, specs
    from brax.training.agents.ppo import networks

    made = networks.make_ppo_networks(
        OBS, ACTIONS, running_statistics.normalize, policy_hidden_layer_sizes=(32, 32)
    )
    key = jax.random.PRNGKey(0)
    seen = running_statistics.update(
        running_statistics.init_state(specs.Array((OBS,), np.dtype("float32"))), SEEN
    )
    params = (seen, made.policy_network.init(key), made.value_network.init(key))
    model.save_params(str(path), params)
    return networks.make_inference_fn(made)(params, deterministic=True)(SEEN, key)[0]


LIBRARIES: dict[str, tuple[Callable[[Path], Any], Unsaid]] = {
    "rsl-rl-lib": (rsl_rl, Unsaid("elu")),
    "skrl": (skrl, Unsaid("elu", "none")),
    "brax": (brax, Unsaid("silu", None, "file")),
}


def main() -> None:
    """Print the largest difference of the actions for each library."""
    with tempfile.TemporaryDirectory() as folder:
        for seed, (name, (save, unsaid)) in enumerate(LIBRARIES.items()):
            torch.manual_seed(seed)
            path = Path(folder) / name
            theirs = np.array(save(path).tolist())
            actor, _ = read_actor(path, unsaid)
            edge = 1.0 if actor.limits else 100.0
            spec = PolicySpec(OBS, 1, ACTIONS, (-edge,) * ACTIONS, (edge,) * ACTIONS)
            policy = actor.policy(spec)
            ours = policy.act(torch.from_numpy(SEEN), deterministic=True)[:, 0].numpy()
            sys.stdout.write(
                f"{name} {metadata.version(name)}: {policy.kind}, {len(SEEN)} actions from "
                f"{theirs.min():.2f} to {theirs.max():.2f}, largest difference "
                f"{np.abs(ours - theirs).max():.1e}\n"
            )


if __name__ == "__main__":
    main()
