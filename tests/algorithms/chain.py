"""A small decision process whose values are the solution of a linear system, and who has critics.

Three states; an action pushes one way or the other, by its sign. Every registered method either has
a reader of its value functions here, or is named in ``WITHOUT_CRITIC``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.algorithms.common.categorical import expectation
from trimtab.algorithms.common.rollouts import RolloutActorCritic
from trimtab.algorithms.finetuning.diffusion_ql import DiffusionQL
from trimtab.algorithms.finetuning.fql import FQL
from trimtab.algorithms.off_policy.fast_td3 import FastTD3
from trimtab.algorithms.off_policy.flash_sac import FlashSAC
from trimtab.algorithms.off_policy.goal_distance import GoalDistance
from trimtab.algorithms.off_policy.gorl_sac import GoRLSAC
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.algorithms.off_policy.sac_flow import SACFlow
from trimtab.algorithms.off_policy.simba_v2 import SimbaV2
from trimtab.algorithms.off_policy.td3 import TD3
from trimtab.algorithms.off_policy.xqc import XQC
from trimtab.algorithms.offline.awac import AWAC
from trimtab.algorithms.offline_to_online.conrft import ConRFT
from trimtab.algorithms.offline_to_online.serl import SERL
from trimtab.algorithms.on_policy.ppo import PPO
from trimtab.algorithms.peers.sb3 import ReplayingPeer
from trimtab.algorithms.peers.sb3_ppo import SB3PPO
from trimtab.algorithms.peers.sb3_sac import SB3SAC
from trimtab.algorithms.selection.best_of_n import BestOfN
from trimtab.algorithms.steering.dsrl_na import DSRLNA
from trimtab.algorithms.steering.dsrl_sac import DSRLSAC
from trimtab.benchmarks.training.settings.constructors import class_of, keywords
from trimtab.policies.base import Policy
from trimtab.policies.kinds.gated_flow import GatedFlowPolicy
from trimtab.policies.kinds.gaussian import GaussianPolicy
from trimtab.policies.kinds.hyperspherical_gaussian import HypersphericalGaussianPolicy
from trimtab.policies.kinds.unit_gaussian import UnitGaussianPolicy
from trimtab.policies.registry import policy_kinds
from trimtab.types import Batch, PolicySpec, Statistics

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "algorithm").glob("*.yaml"))
WITHOUT_CRITIC = {"bc", "consistency_distillation", "decision_transformer", "frozen", "zero_noise"}
WITHOUT_CRITIC |= {"golden_ticket", "oppo", "repeated_noise"}
# What is valued here is a plan and its correction; their own tests go through the equations by row.
WITHOUT_CRITIC |= {"expo", "pa_rl", "residual"}
# Flows and diffusions cannot be held at a plan: the critics of these have tests of their own.
WITHOUT_CRITIC |= {"nft", "ogpo", "diffusion_awr", "diffusion_rwr", "sdac", "qsm", "dpmd"}
# Distances and no values; critics of the data's own actions, whose losses are worked out by row in
# tests of their own.
WITHOUT_CRITIC |= {"dwsl", "cfgrl", "cfpi"}
# Its rewards are divided by a number that alpha is a part of; its own tests work it out.
WITHOUT_CRITIC |= {"brc"}
# Its values are of an embedding, in units of a reward, and learn from stretches of decisions; its
# own tests go through the equations by row.
WITHOUT_CRITIC |= {"mr_q"}
# A diffusion that cannot be held at a plan; its own tests go through the equations by row.
WITHOUT_CRITIC |= {"dime"}
# Its rewards are those of its classifier and not the chain's.
WITHOUT_CRITIC |= {"serl"}
# Its actions are latents, which the chain's batches have none of; its own tests hold its critics
# against a plain soft actor-critic.
WITHOUT_CRITIC |= {"gorl_sac"}
# What it values are soft returns of rollouts; its own tests hold them against a loop and an answer.
WITHOUT_CRITIC |= {"reppo"}
# These weigh the imitation error of each decision, which the plain base below has none of.
CLONED = {"diffusion_awr", "diffusion_rwr"}
# What it learns are numbers of transitions to goals, and the chain has none.
WITHOUT_CRITIC |= {"goal_distance"}
# Its value and its policy are one: no value is left to learn where its policy is held.
WITHOUT_CRITIC |= {"meow"}
OF_THE_DATA = {"idql", "iql", "famo2o"}
"""Methods whose values are those of the actions that were taken, whatever their policy does; their
own tests hold those against this chain."""
GAMMA = 0.7
PUSH = 0.8  # size of an action; its sign decides
LOG_STD = -3.0  # of a held plan, before squashing: so narrow that its signs are certain
STATES = 3

# (state, sign) -> (next state, reward); from state 2 a push down ends the episode.
STEPS: dict[tuple[int, int], tuple[int | None, float]] = {
    (0, -1): (1, 0.2),
    (0, 1): (2, 1.0),
    (1, -1): (0, -0.5),
    (1, 1): (2, 0.4),
    (2, -1): (None, 2.0),
    (2, 1): (0, -0.3),
}


def play(state: int, signs: Sequence[int]) -> tuple[int | None, float, int]:
    """Return where a chunk of pushes leads (None: the end), its rewards' sum and its steps."""
    total, place, taken = 0.0, state, 0
    for sign in signs:
        reached, reward = STEPS[place, sign]
        total, taken = total + reward, taken + 1
        if reached is None:
            return None, total, taken
        place = reached
    return place, total, taken


def plan_values(plan: Sequence[int], bonus: float = 0.0) -> np.ndarray[Any, Any]:
    """Return V of the policy that always makes ``plan``, with ``bonus`` added to every V.

    V = r + gamma P V + bonus, solved.
    """
    moves, rewards = np.zeros((STATES, STATES)), np.zeros(STATES)
    for state in range(STATES):
        reached, rewards[state], _ = play(state, plan)
        if reached is not None:
            moves[state, reached] = 1.0
    return np.linalg.solve(np.eye(STATES) - GAMMA * moves, rewards + bonus)


def decision_values(plan: Sequence[int], bonus: float = 0.0) -> dict[tuple[int, ...], float]:
    """Return Q of every state and chunk of signs, followed by ``plan`` for ever."""
    following = plan_values(plan, bonus)
    found = {}
    for state in range(STATES):
        for signs in itertools.product((-1, 1), repeat=len(plan)):
            reached, reward, _ = play(state, signs)
            later = 0.0 if reached is None else GAMMA * following[reached]
            found[state, *signs] = reward + later
    return found


def coin_values() -> np.ndarray[Any, Any]:
    """Return V of the policy that pushes either way with equal chances, one push a decision."""
    moves, rewards = np.zeros((STATES, STATES)), np.zeros(STATES)
    for (state, _), (reached, reward) in STEPS.items():
        rewards[state] += reward / 2
        if reached is not None:
            moves[state, reached] += 0.5
    return np.linalg.solve(np.eye(STATES) - GAMMA * moves, rewards)


def seen(states: Sequence[int] | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the observations of states: one of three entries is 1."""
    return np.eye(STATES, dtype=np.float32)[np.asarray(states, dtype=np.int64)]


class Plain(Policy):
    """Its action is its latent: with it as a base, steering in latents is acting.

    It can be held at a plan, and cloning does not move it.
    """

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec, (spec.horizon, spec.action_dim))
        self.scale = nn.Parameter(torch.ones(()))
        self.plan = nn.Parameter(torch.zeros(spec.horizon, spec.action_dim))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the latent, clipped to the limits, or the plan that it is held at."""
        return self.normalizer.raw_action(self.scale * noise + self.plan)

    def bc_loss(self, batch: Batch) -> Tensor:
        """Return a loss without a slope."""
        return 0.0 * (self.scale + self.plan.sum())


def base_of(kind: str, spec: PolicySpec) -> Policy:
    """Return the base of a method that starts from a kind of policy; otherwise the plain one."""
    if not kind:
        return Plain(spec)
    network: Any = policy_kinds()[kind]
    base: Policy = network(spec, hidden=(16, 16), sampling_steps=2)
    return base


@functools.cache
def _file_of(name: str) -> Any:
    return OmegaConf.load(next(file for file in FILES if file.stem == name))


def class_named(name: str) -> type[Algorithm]:
    """Return the class of a registered method."""
    found: type[Algorithm] = class_of(_file_of(name).algorithm._target_, "_target_")
    return found


def built(name: str, horizon: int = 1, num_envs: int = 1, **wanted: Any) -> Algorithm:
    """Make a registered method; of ``wanted`` it is given what its constructor takes.

    Observations and actions are left in the units above, so that statistics change nothing.
    """
    settings: Any = OmegaConf.to_container(_file_of(name), resolve=True)
    settings = settings["algorithm"]
    target = settings.pop("_target_")
    settings |= {key: value for key, value in wanted.items() if key in keywords(target)}
    spec = PolicySpec(STATES, horizon, 1, (-1.0,), (1.0,))
    zero = torch.zeros(STATES)
    ranges = torch.tensor([-1.0]), torch.tensor([1.0])
    setup = Setup(
        spec=spec,
        policy=lambda spec: GaussianPolicy(spec, hidden=(8,)),
        base=base_of(
            "flow" if name in CLONED else class_of(target, "_target_").needs.base_kind, spec
        ),
        oracles=(Plain(spec),),
        statistics=Statistics(zero, zero + 1, zero - 1, zero + 1, *ranges),
        num_envs=num_envs,
        discount=GAMMA,
    )
    made: Algorithm = class_of(target, "_target_")(setup, **settings)
    return made


Values = Callable[[Tensor, Tensor], list[Tensor]]
"""(observations ``[B, O]``, actions ``[B, H, A]``) to values ``[E, B]``, of each kind of critic."""


WITH_CRITICS = (
    AWAC, BestOfN, ConRFT, DiffusionQL, DSRLSAC, FastTD3, FlashSAC, FQL, ReplayingPeer, SAC,
    SimbaV2, TD3, XQC,
)  # fmt: skip
"""The classes whose state-action values :func:`critics_of` reads, but for those of ``UNREAD``."""
UNREAD = (SERL, GoRLSAC, GoalDistance)
WITH_VALUES = (RolloutActorCritic, PPO, SB3PPO)
"""The classes whose state values :func:`value_of` reads."""


def critics_of(algorithm: Algorithm) -> Values | None:
    """Return what reads the state-action values of a method, or None where it has none."""
    if isinstance(algorithm, UNREAD):
        return None
    if isinstance(algorithm, DSRLSAC):  # of the plain base above, whose latents are its actions

        def steered(obs: Tensor, action: Tensor) -> list[Tensor]:
            read = algorithm.actor.normalizer.obs(obs)
            found = [algorithm.critic(read, action / algorithm.magnitude)]
            if isinstance(algorithm, DSRLNA):
                found.append(algorithm.action_critic(read, action))
            return found

        return steered
    if isinstance(algorithm, SAC | DSRLSAC):
        return lambda obs, action: [algorithm.critic(algorithm.actor.normalizer.obs(obs), action)]
    if isinstance(algorithm, SimbaV2 | FastTD3 | FlashSAC | XQC):

        def mean(obs: Tensor, action: Tensor) -> list[Tensor]:
            logits = algorithm.critic(algorithm.policy.normalizer.obs(obs), action)
            return [expectation(logits, algorithm.critic.support)]

        return mean
    if isinstance(algorithm, TD3 | ConRFT | AWAC):
        return lambda obs, action: [algorithm.critic(algorithm.policy.normalizer.obs(obs), action)]
    if isinstance(algorithm, BestOfN):
        return lambda obs, action: [algorithm.policy.value(obs, action)]
    if isinstance(algorithm, FQL | DiffusionQL):
        return lambda obs, action: [algorithm.critic(algorithm.policy.normalizer.obs(obs), action)]
    if isinstance(algorithm, ReplayingPeer):
        model: Any = algorithm.model
        return lambda obs, action: [
            torch.stack([q.squeeze(-1) for q in model.critic(obs, action.flatten(1))])
        ]
    return None


def value_of(algorithm: Algorithm) -> Callable[[Tensor], Tensor] | None:
    """Return what reads the state values of a method, or None where it has none."""
    if isinstance(algorithm, PPO | RolloutActorCritic):
        normalizer = algorithm.policy.normalizer
        return lambda obs: algorithm.critic(normalizer.obs(obs)).squeeze(-1)
    if isinstance(algorithm, SB3PPO):
        return algorithm.value
    return None


class HeldPlan:
    """Keeps a method's actor at one plan, whatever it learns: what is left is policy evaluation.

    Args:
        algorithm: with state-action critics.
        plan: sign of each action of the chunk that its actor makes in every state.
    """

    def __init__(self, algorithm: Algorithm, plan: Sequence[int]) -> None:
        self.modules = self._actors(algorithm)
        size = algorithm.magnitude if isinstance(algorithm, DSRLSAC) else 1.0
        mean = torch.atanh(torch.tensor(plan) * PUSH / size)
        if isinstance(algorithm, ConRFT):  # its policy has no tanh, and takes half of its network
            mean = torch.tensor(plan) * PUSH / algorithm.policy.sigma_data
        if isinstance(algorithm, AWAC):  # its mean has no tanh
            mean = torch.tensor(plan) * PUSH
            algorithm.policy.free_log_std.data.fill_(-10.0)
        with torch.no_grad():
            for module in self.modules[: 2 if self.deterministic else 1]:
                if isinstance(module, Plain):
                    module.scale.zero_()
                    module.plan.copy_(PUSH * torch.tensor(plan)[:, None])
                else:
                    self._fix(module, torch.tanh(mean) if isinstance(algorithm, FQL) else mean)
        states = [module.state_dict() for module in self.modules]
        self.tensors = [tensor for state in states for tensor in state.values()]
        self.saved = [tensor.clone() for tensor in self.tensors]

    def _actors(self, algorithm: Algorithm) -> list[nn.Module]:
        self.deterministic = True
        if isinstance(algorithm, ConRFT | AWAC):
            return [algorithm.policy]
        if isinstance(algorithm, BestOfN):
            return [algorithm.policy.base]
        if isinstance(algorithm, DiffusionQL):
            return [algorithm.policy.base, algorithm.learner]
        if isinstance(algorithm, FQL | FastTD3):
            return [algorithm.policy]
        if isinstance(algorithm, TD3):
            return [algorithm.policy, algorithm.policy_target]
        if isinstance(algorithm, SAC | DSRLSAC | SimbaV2):
            self.deterministic = False
            # Some step their actor before their critics: it must not move even for that long.
            algorithm.actor_optimizer.learning_rate = 0.0
            algorithm.temperature_optimizer.learning_rate = 0.0
            return [algorithm.actor, algorithm.temperature]
        if isinstance(algorithm, FlashSAC | XQC):
            self.deterministic = False
            algorithm.actor_every, algorithm.updates = 1 << 40, 1  # its turn never comes
            return [algorithm.actor, algorithm.temperature]
        assert isinstance(algorithm, ReplayingPeer)
        model: Any = algorithm.model
        if isinstance(algorithm, SB3SAC):
            self.deterministic = False
            return [model.actor, algorithm.temperature]
        return [model.actor, model.actor_target]

    def _fix(self, actor: nn.Module, mean: Tensor) -> None:
        if isinstance(actor, HypersphericalGaussianPolicy):
            self._fix_spherical(actor, mean)
            return
        heads: list[Any] = [m for m in actor.modules() if isinstance(m, nn.Linear)]
        spread = torch.full_like(mean, LOG_STD)
        if isinstance(actor, UnitGaussianPolicy):  # whose widths a tanh squashes to [-10, 2]
            spread, heads = torch.atanh((spread + 4) / 6), [actor.network.output]
        if isinstance(actor, GatedFlowPolicy):  # of one step, which an open gate leads to the mean
            low, high = actor.log_std_range
            heads = [actor.gate[-1], actor.candidate[-1], actor.width[-1]]
            biases = [spread * 0 + 30, mean, torch.atanh(2 * (spread - low) / (high - low) - 1)]
        elif self.deterministic:
            heads, biases = heads[-1:], [mean]
        elif hasattr(actor, "mu"):  # of Stable-Baselines3
            heads, biases = [actor.mu, actor.log_std], [mean, spread]
        else:
            heads, biases = heads[-1:], [torch.cat([mean, spread])]
        for head, bias in zip(heads, biases, strict=True):
            head.weight.zero_()
            head.bias.copy_(bias)

    def _fix_spherical(self, actor: HypersphericalGaussianPolicy, mean: Tensor) -> None:
        # Its log standard deviation is a tanh, spread from -10 to 2.
        spread = torch.full_like(mean, math.atanh((LOG_STD + 4.0) / 6.0))
        for head, bias in ((actor.mean_head, mean), (actor.log_std_head, spread)):
            head.second.weight.zero_()
            head.bias.copy_(bias)

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what an update did to actor and temperature."""
        torch._foreach_copy_(self.tensors, self.saved)


def entropy_bonus(algorithm: Algorithm, count: int) -> float:
    """Return what a held plan's entropy is worth in every decision: alpha times its nats.

    ``tanh`` stretches a narrow Gaussian of ``count`` actions at PUSH by its slope there.
    """
    gaussian = 0.5 * math.log(2 * math.pi * math.e)
    nats = count * (LOG_STD + gaussian + math.log(1 - PUSH**2))
    if isinstance(algorithm, SACFlow):
        nats += count * gaussian  # of where its path starts
    if isinstance(algorithm, FlashSAC | XQC):
        return float(algorithm.temperature().detach()) * nats
    if isinstance(algorithm, SAC | DSRLSAC) and algorithm.backup_entropy:
        size = algorithm.magnitude if isinstance(algorithm, DSRLSAC) else 1.0
        assert size == 1.0
        return float(algorithm.temperature().detach()) * nats
    if isinstance(algorithm, SimbaV2):
        return float(algorithm.temperature().detach()) * nats
    if isinstance(algorithm, SB3SAC):
        return math.exp(float(algorithm.temperature.value)) * nats
    return 0.0
