"""FQL, QC-FQL and Q-chunking beside their authors' agents, run out of checkouts.

The networks of this suite are a listed deviation. So the methods get networks of the authors' form
here: GELU by its approximation, normalisation after it, and the time itself as an input.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.learners import linear_weights, start_of, widen
from peer_sides.exchange import replaced
from torch import Tensor, nn
from torch.nn import functional

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.targets import polyak
from trimtab.algorithms.finetuning import fql
from trimtab.algorithms.selection import best_of_n, qc
from trimtab.files import sha256_file
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.networks.critic import EnsembleCritic, EnsembleLayerNorm, EnsembleLinear
from trimtab.policies.networks.mlp import mlp
from trimtab.types import Batch, PolicySpec

__all__ = ["PEERS"]

OBS, ACTION, ROWS, UPDATES = 5, 2, 32, 5
HIDDEN, RATE, TAU, DISCOUNT, CRITICS = [32, 32], 1e-2, 0.05, 0.97, 2
STEPS = 8
"""Steps of the flow; the times of eight are exact in single precision."""
TOLERANCE = 1e-9
MOVED = "the target critics move after the critics' step"


class VectorField(nn.Module):
    """The authors' network of a flow: a perceptron over observation, noisy chunk and time."""

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        self.shape = (spec.horizon, spec.action_dim)
        flat = spec.horizon * spec.action_dim
        self.network = mlp(spec.obs_dim + flat + 1, HIDDEN, flat, activation="gelu")

    def condition(self, obs: Tensor) -> Tensor:
        """Return the observations ``[B, O]``."""
        return obs

    def forward(self, action: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Return velocities ``[B, H, A]`` at noisy chunks, times ``[B]`` or ``[1]``, and obs."""
        column = time[:, None].expand(len(action), 1).to(action.dtype)
        found: Tensor = self.network(torch.cat([condition, action.flatten(1), column], dim=1))
        return found.reshape(-1, *self.shape)


class Gelu(nn.ReLU):
    """The approximate GELU, where an ensemble of critics knows ReLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return functional.gelu(input, approximate="tanh")


class Norm(EnsembleLayerNorm):
    """Layer normalisation with the epsilon of Flax."""

    def forward(self, x: Tensor, members: Any = None) -> Tensor:
        """Return ``x`` normalised, scaled and shifted."""
        x = functional.layer_norm(x, x.shape[-1:], eps=1e-6)
        return torch.addcmul(self.bias, x, self.weight)


def authors_critic(size: int) -> EnsembleCritic:
    """Return critics of the authors' form, over ``size`` numbers of an action."""
    critic = EnsembleCritic(
        OBS, size, hidden=HIDDEN, members=CRITICS, layer_norm=True, norm_last=True
    )
    for index, layer in enumerate(critic.network):
        if isinstance(layer, nn.ReLU):
            critic.network[index] = Gelu()
        elif isinstance(layer, EnsembleLayerNorm):
            critic.network[index] = Norm(CRITICS, layer.weight.shape[-1])
    return critic


def flow(spec: PolicySpec) -> FlowPolicy:
    """Return a flow with the authors' network."""
    policy = FlowPolicy(spec, hidden=HIDDEN, sampling_steps=STEPS)
    policy.network = VectorField(spec)  # type: ignore[assignment]
    return policy


def approximate(network: nn.Module) -> None:
    """Let every GELU of a network be the approximate one."""
    for layer in network.modules():
        if isinstance(layer, nn.GELU):
            layer.approximate = "tanh"


def critic_weights(name: str, critic: EnsembleCritic) -> dict[str, Any]:
    """Return the weights of critics, each ``[E, ...]``, by name."""
    found = {}
    for kind, words in ((EnsembleLinear, ""), (EnsembleLayerNorm, " norm")):
        layers = [layer for layer in critic.network if isinstance(layer, kind)]
        for index, layer in enumerate(layers):
            for part in ("weight", "bias"):
                array = getattr(layer, part).detach().numpy().copy()
                found[f"{name} {index}{words} {part}"] = array
    return found


@dataclass(frozen=True)
class Part:
    """One method beside one agent.

    Attributes:
        name: name of the part.
        file: module of the agent in ``agents/``.
        agent: its class.
        length: H, actions of a chunk.
        settings: of our method.
        config: of theirs, besides what both have in common.
        best_of: samples among which the critic chooses; 0: a policy of one step.
    """

    name: str
    file: str
    agent: str
    length: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    best_of: int = 0

    @property
    def noise(self) -> list[str]:
        """Names of the draws, in the order in which the agent draws them."""
        return ["next", "flow"] if self.best_of else ["next", "flow", "policy"]

    @property
    def groups(self) -> list[str]:
        """Groups of weights that an update moves."""
        return ["flow", *([] if self.best_of else ["policy"]), "critics", "targets"]

    @property
    def form(self) -> str:
        """Words of the method's docstring about the form of its critics."""
        if self.best_of:
            return "ReLU, layer normalisation before it"
        return "critics with ReLU after layer normalisation"

    @property
    def summed(self) -> str:
        """Words of the method's docstring about the loss of several critics."""
        if self.best_of:
            return "Loss of each critic: summed over them"
        return "Losses of the critics are summed"

    @property
    def module(self) -> Any:
        """The module of ours in which the targets are moved."""
        return best_of_n if self.best_of else fql


def learner(part: Part) -> Any:
    """Return our method with networks of the authors' form."""
    torch.manual_seed(0)
    spec = PolicySpec(OBS, part.length, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    setup = Setup(spec, policy=flow, discount=DISCOUNT)
    common = {"hidden": HIDDEN, "critics": CRITICS, "learning_rate": RATE, "tau": TAU}
    if part.best_of:
        words = {"candidates": part.best_of, "target_candidates": part.best_of}
        ours: Any = qc.QChunking(setup, **words, **common)
    else:
        ours = fql.FQL(setup, **common, **part.settings)
        approximate(ours.policy)
    approximate(flow_of(ours))
    return ours


def flow_of(ours: Any) -> Any:
    """Return the flow of FQL or Q-chunking."""
    return ours.flow if hasattr(ours, "flow") else ours.policy.base


def holder_of(ours: Any) -> Any:
    """Return what has the critics as its ``critic``."""
    return ours if hasattr(ours, "critic") else ours.policy


def weights_of(ours: Any) -> dict[str, Any]:
    """Return every weight that an update moves."""
    policy = {} if hasattr(ours.policy, "base") else linear_weights("policy", ours.policy)
    return {
        **linear_weights("flow", flow_of(ours)),
        **policy,
        **critic_weights("critics", holder_of(ours).critic),
        **critic_weights("targets", ours.target),
    }


def question(part: Part) -> dict[str, Any]:
    """Return batches and noise of all updates."""
    rng = np.random.default_rng(1)
    flat = part.length * ACTION
    following = (ROWS, part.best_of, flat) if part.best_of else (ROWS, flat)
    arrays = {
        "batch observations": rng.standard_normal((UPDATES, ROWS, OBS)),
        "batch actions": rng.uniform(-1, 1, (UPDATES, ROWS, part.length, ACTION)),
        "batch rewards": rng.standard_normal((UPDATES, ROWS)),
        "batch masks": (rng.random((UPDATES, ROWS)) < 0.8).astype(float),
        "batch next_observations": rng.standard_normal((UPDATES, ROWS, OBS)),
        "next": rng.standard_normal((UPDATES, *following)),
        "flow": rng.standard_normal((UPDATES, ROWS, flat)),
        "time": rng.random((UPDATES, ROWS)),
    }
    return (
        arrays if part.best_of else arrays | {"policy": rng.standard_normal((UPDATES, ROWS, flat))}
    )


def updated(
    part: Part, arrays: Mapping[str, Any], *, first: bool, authors: bool = True
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Take the updates; return the weights before, the losses, and the weights after.

    Args:
        part: the method.
        arrays: batches and noise.
        first: whether the targets move before the critics' step, and Adam's epsilon is that of a
            mean over critics.
        authors: whether the critics have the authors' form.
    """
    ours = learner(part)
    holder, own = holder_of(ours), holder_of(ours).critic
    holder.critic = authors_critic(part.length * ACTION)
    if not authors:
        with torch.no_grad():
            for mine, theirs in zip(own.parameters(), holder.critic.parameters(), strict=True):
                mine.copy_(theirs)
        holder.critic = own
    ours.target = copy.deepcopy(holder.critic).requires_grad_(False)
    epsilon = CRITICS * 1e-8 if first else 1e-8
    ours.critic_optimizer = Adam(holder.critic.parameters(), RATE, epsilon=epsilon)
    widen(ours)
    flow_of(ours).double()
    before = start_of(weights_of(ours))
    losses: dict[str, list[Any]] = {}
    for step in range(UPDATES):
        given = {name: torch.from_numpy(array[step]) for name, array in arrays.items()}
        batch = Batch(
            obs=given["batch observations"],
            action=given["batch actions"],
            reward=given["batch rewards"],
            next_obs=given["batch next_observations"],
            discount=DISCOUNT**part.length * given["batch masks"],
            valid=torch.ones(ROWS, part.length, dtype=torch.bool),
            whole=True,
        )
        told = one_update(part, ours, batch, given, first=first)
        for name in ("critic_loss", "flow_loss", "clone_loss", "distillation_loss"):
            if name in told:
                words = name.replace("clone", "flow").replace("_", " ")
                losses.setdefault(words, []).append(told[name].numpy())
    return before, {name: np.stack(loss) for name, loss in losses.items()}, weights_of(ours)


def one_update(
    part: Part, ours: Any, batch: Batch, given: Mapping[str, Tensor], *, first: bool
) -> Any:
    """Take one update of ours with the given noise."""
    shape = (-1, part.length, ACTION)
    drawn = [given[name].reshape(shape) for name in part.noise if name != "flow"]
    wanted = iter(drawn)
    sampler = ours.policy.base if part.best_of else ours.policy
    so_far = copy.deepcopy(holder_of(ours).critic)

    def before_the_step(target: nn.Module, critic: nn.Module, rate: float) -> None:
        polyak(target, so_far, rate)

    with (
        replaced(sampler, "sample_noise", lambda count: next(wanted)),
        replaced(torch, "randn_like", lambda like: given["flow"].reshape(shape)),
        replaced(torch, "rand", lambda *size, **words: given["time"]),
        replaced(part.module, "polyak", before_the_step if first else polyak),
    ):
        return ours.update(batch)


def checks_of(part: Part, folder: Path, checkout: str) -> list[Check]:
    """Write the question of a part, take our updates, and return what is compared."""
    arrays = question(part)
    before, losses, after = updated(part, arrays, first=True)
    write_arrays(folder / part.name, arrays | before)
    common = {
        "actor_hidden_dims": HIDDEN, "value_hidden_dims": HIDDEN, "lr": RATE, "discount": DISCOUNT,
        "tau": TAU, "flow_steps": STEPS,
    }  # fmt: skip
    write_settings(
        folder / part.name,
        {
            "checkout": checkout, "file": part.file, "agent": part.agent, "noise": part.noise,
            "groups": part.groups, "config": common | dict(part.config),
        },
    )  # fmt: skip
    what = f"of {UPDATES} updates from the same weights, batches and noise"
    total = {"critic loss": losses["critic loss"]}
    losses["critic loss"] = losses["critic loss"] / CRITICS  # theirs is the mean over critics
    checks = [
        Check(part.name, name, f"{name} {what}", {name: loss}, TOLERANCE)
        for name, loss in losses.items()
    ]
    for group in part.groups:
        ours = {name: array for name, array in after.items() if name.startswith(group)}
        checks.append(
            Check(part.name, group, f"{group} after {UPDATES} such updates", ours, TOLERANCE)
        )
    what = "critic loss when it is the sum over critics"
    checks.append(Check(part.name, "critic loss, summed", what, total, 1e-4, part.summed))
    _, _, late = updated(part, arrays, first=False)
    targets = {name: array for name, array in late.items() if name.startswith("targets")}
    what = "targets when they move after the critics' step"
    checks.append(Check(part.name, "targets, moved after", what, targets, 1e-4, MOVED))
    _, other, _ = updated(part, arrays, first=True, authors=False)
    loss = {"critic loss": other["critic loss"] / CRITICS}
    what = "critic loss with the activation and the normalisation of this suite's critics"
    checks.append(Check(part.name, "critic loss, own critics", what, loss, 1e-4, part.form))
    return checks


class FlowQ(Peer):
    """An agent that learns from a flow by Q-learning, run out of a checkout."""

    package, side = "jax", "with_flow_q.py"
    requirements = (
        "jax==0.6.0", "jaxlib==0.6.0", "flax==0.10.5", "optax==0.2.4", "distrax==0.1.5",
        "chex==0.1.89", "ml_collections==1.1.0", "tensorflow-probability==0.25.0",
        "orbax-checkpoint==0.11.12", "numpy==1.26.4",
    )  # fmt: skip
    parts: tuple[Part, ...]

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of the agent's file, which has no version."""
        file = f"{self.parts[0].file}.py"
        return f"{file} {sha256_file(Path(settings[self.needs]) / 'agents' / file)[:10]}"

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, batches and noise, and take our own updates."""
        checkout = str(Path(settings[self.needs]).resolve())
        return [check for part in self.parts for check in checks_of(part, folder, checkout)]


class Fql(FlowQ):
    """The authors' FQL."""

    name, needs = "FQL", "fql"
    parts = (
        Part("fql", "fql", "FQLAgent", settings={"alpha": 10.0}, config={"alpha": 10.0}),
        Part(
            "fql of the least Q, normalised", "fql", "FQLAgent",
            settings={"alpha": 0.3, "pessimistic": True, "normalize_q": True},
            config={"alpha": 0.3, "q_agg": "min", "normalize_q_loss": True},
        ),
    )  # fmt: skip


class Qc(FlowQ):
    """The authors' QC and QC-FQL."""

    name, needs = "QC", "qc"
    parts = (
        Part(
            "qc", "acfql", "ACFQLAgent", 3, best_of=8,
            config={"horizon_length": 3, "actor_type": "best-of-n", "actor_num_samples": 8},
        ),
        Part(
            "qc-fql", "acfql", "ACFQLAgent", 3, {"alpha": 100.0},
            {"horizon_length": 3, "actor_type": "distill-ddpg", "alpha": 100.0},
        ),
    )  # fmt: skip


PEERS: tuple[Peer, ...] = (Fql(), Qc())
