"""FPO beside its authors' agent, run out of a checkout.

Time runs backwards in theirs. So our velocity is that of their network here: with the other sign,
and read at 1 - t.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_checks.check import Check, Peer, Settings, write_arrays, write_settings
from peer_checks.dppo import doubled
from peer_checks.learners import linear_weights, start_of
from peer_sides.exchange import replaced
from torch import Tensor

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.on_policy import fpo
from trimtab.algorithms.on_policy.fpo import FPO, Samples
from trimtab.files import sha256_file
from trimtab.policies.normalizer import RunningNormalizer
from trimtab.types import PolicySpec, Rollout

__all__ = ["PEERS"]

FOLDER = "playground/src/flow_policy"
FILES = ("fpo.py", "networks.py", "rollouts.py", "math_utils.py")
OBS, HORIZON, ACTION, ENVS = 5, 2, 2, 4
PIECE, PIECES, MINIBATCHES, EPOCHS = 5, 3, 4, 3
"""Decisions of a piece of a rollout, pieces in a minibatch, minibatches, passes."""
STEPS = PIECE * PIECES * MINIBATCHES // ENVS
RATE, DISCOUNT, DECAY, REWARD_SCALE, CLIP = 1e-2, 0.99, 0.95, 10.0, 0.05
HIDDEN, CRITIC_HIDDEN, PAIRS, FLOW_STEPS = [32] * 4, [32, 32], 8, 10
TOLERANCE = 1e-9
SHIFTED = "Statistics of observations change after an update, so that its first ratio is 1"
COUNTED = "all observations count in their standard deviation"
ONCE = "A and R are computed once, from the whole rollout"
UNDECAYED = "the actor's advantage is A (there: r + gamma R(s') - V(s)"
SAMPLE = "the variance that normalises A is a sum over M - 1 (there: over M)"
LIMIT = "a time limit is bootstrapped with V of the last observation (there: left out)"


@dataclass(frozen=True)
class Form:
    """What our update takes over from theirs.

    Attributes:
        early: statistics of observations change before the update.
        pieces: A and R are those of a piece of the rollout, by the V of the moment.
        undecayed: the first step of the actor's advantage is not decayed by lambda.
        population: the variance that normalises A is a sum over M, not M - 1.
    """

    early: bool = True
    pieces: bool = True
    undecayed: bool = True
    population: bool = True


@dataclass(frozen=True)
class Part:
    """Settings of both sides.

    Attributes:
        name: name of the part.
        settings: of our method.
        config: of theirs.
        time_limit: whether some episodes end by the clock.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    time_limit: bool = False


PARTS = (
    Part("fpo"),
    Part(
        "fpo of the velocity, a ratio a pair",
        settings={"loss": "velocity", "ratio": "pair", "log_ratio_limit": 3.0},
        config={"output_mode": "u", "average_losses_before_exp": False},
    ),
    Part("fpo, time limits", time_limit=True),
)


def population_normalized(advantage: Tensor) -> Tensor:
    """Return advantages with mean 0 and variance 1, which is a sum over M."""
    centred = advantage - advantage.mean()
    return centred / (advantage.std(correction=0) + 1e-8)


def learner(settings: Mapping[str, Any]) -> FPO:
    """Return our method; Adam's epsilon makes half of a mean their quarter."""
    torch.manual_seed(0)
    spec = PolicySpec(OBS, HORIZON, ACTION, (-1.0,) * ACTION, (1.0,) * ACTION)
    ours = FPO(
        Setup(spec, num_envs=ENVS, discount=DISCOUNT),
        pairs=PAIRS, actor_hidden=HIDDEN, hidden=CRITIC_HIDDEN, sampling_steps=FLOW_STEPS,
        learning_rate=RATE, rollout_steps=STEPS, clip=CLIP, gae_decay=DECAY,
        normalize_rewards=False, **settings,
    )  # fmt: skip
    ours.critic_optimizer = Adam(ours.critic.parameters(), RATE, epsilon=2e-8)
    velocity = ours.actor.velocity
    ours.actor.velocity = lambda x, time, condition: -velocity(x, 1 - time, condition)  # type: ignore[method-assign]
    return ours


def weights_of(ours: FPO) -> dict[str, Any]:
    """Return every weight that an update moves; the actor's first two layers are one there."""
    network = ours.actor.network
    point, sine, cosine = network.action_layer.weight.split(
        [HORIZON * ACTION, len(network.frequencies), len(network.frequencies)], 1
    )
    first = torch.cat([network.obs_layer.weight, point, cosine, sine], 1)
    found = {
        "actor 0 weight": first.detach().numpy().copy(),
        "actor 0 bias": network.obs_layer.bias.detach().numpy().copy(),
    }
    for name, array in linear_weights("actor", network.body).items():
        _, index, kind = name.split()
        found[f"actor {int(index) + 1} {kind}"] = array
    return found | linear_weights("critic", ours.critic)


def rollout_of(ours: FPO, *, time_limit: bool) -> tuple[Rollout, dict[str, Any]]:
    """Return a rollout of random numbers in which the policy has acted, and what it drew."""
    obs, next_obs = 3.0 * torch.randn(2, STEPS, ENVS, OBS) + 1.0
    ended = torch.rand(STEPS, ENVS) < 0.2
    ended[-1] = torch.tensor([True, False, False, False])
    limit = torch.zeros_like(ended)
    limit[STEPS // 2, 1] = limit[STEPS // 3, 2] = time_limit
    cut = ended | limit
    next_obs[:-1] = torch.where(cut[:-1, :, None], next_obs[:-1], obs[1:])
    drawn: dict[str, Tensor] = {}
    sample_noise = ours.actor.sample_noise

    def watched(rows: int) -> Tensor:
        drawn["noise"] = sample_noise(rows)
        return drawn["noise"]

    with replaced(ours.actor, "sample_noise", watched):
        action, stored = ours.explore(obs.flatten(0, 1), warmup=False)
    reward = torch.randn(STEPS, ENVS) + 1.0
    data = Rollout(
        obs=obs,
        action=action.unflatten(0, (STEPS, ENVS)),
        reward=REWARD_SCALE * reward,
        next_obs=next_obs,
        discount=DISCOUNT * (~(ended & ~limit)).double(),
        cut=cut,
        aux={name: array.unflatten(0, (STEPS, ENVS)) for name, array in stored.items()},
    )
    flat = HORIZON * ACTION
    return data, {
        "obs": obs.numpy(), "next_obs": next_obs.numpy(), "reward": reward.numpy(),
        "truncation": limit.double().numpy(),
        "discount": (data.discount > 0).double().numpy(),
        "noise": drawn["noise"].reshape(STEPS, ENVS, flat).numpy(),
        "latent": data.aux["latent"].reshape(STEPS, ENVS, flat).numpy(),
        "epsilon": data.aux["epsilon"].reshape(STEPS, ENVS, PAIRS, flat).numpy(),
        "level": (data.aux["time"] * FLOW_STEPS).round().long().numpy(),
        "loss": data.aux["loss"].numpy(),
    }  # fmt: skip


def columns(array: Tensor) -> Tensor:
    """Return the pieces of an array ``[T, N, ...]`` beside each other, ``[L, P, ...]``."""
    pieces = array.transpose(0, 1).reshape(-1, PIECE, *array.shape[2:])
    return pieces.transpose(0, 1)


def piecewise(data: Rollout, chosen: Tensor) -> Rollout:
    """Return some pieces of a rollout as a rollout of their own."""

    def taken(array: Any) -> Tensor:
        return columns(array)[:, chosen]

    given = {name: taken(getattr(data, name)) for name in (
        "obs", "action", "reward", "next_obs", "discount", "cut",
    )}  # fmt: skip
    return Rollout(**given, aux={name: taken(array) for name, array in data.aux.items()})


def minibatch(ours: FPO, data: Rollout, chosen: Tensor, form: Form) -> Samples:
    """Return a minibatch of pieces, with A and R by the V of the moment."""
    part = piecewise(data, chosen)
    samples = ours.samples(part)
    if not form.undecayed:
        return samples
    advantage = samples.advantage.reshape(PIECE, -1)
    following = torch.cat([advantage[1:], torch.zeros_like(advantage[:1])])
    rest = part.discount * ~part.cut * (1 - DECAY) * following
    return replace(samples, advantage=(advantage + rest).flatten())


def updated(part: Part, form: Form) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the updates of a rollout; return the arrays of the question, and our values."""
    with doubled():
        ours = learner(part.settings)
        start = start_of(weights_of(ours))
        data, arrays = rollout_of(ours, time_limit=part.time_limit)
        later = 2.0 * torch.randn(STEPS, ENVS, OBS)
        orders = torch.stack([torch.randperm(PIECES * MINIBATCHES) for _ in range(EPOCHS)])
        arrays |= {"orders": orders.numpy(), "later": later.numpy()}
        normalizer = ours.actor.normalizer
        assert isinstance(normalizer, RunningNormalizer)
        normalizer.limit = None
        if form.early:
            normalizer.see(data.obs)
            normalizer.obs_scale.copy_(normalizer.variance.sqrt())
        rows = columns(torch.arange(STEPS * ENVS).reshape(STEPS, ENVS))
        whole = ours.samples(data)
        with torch.no_grad():
            losses = ours.pair_losses(whole.obs, whole.latent, whole.epsilon, whole.time)
            ratio = ours.log_ratios(whole.loss, losses).exp()
        normalise = population_normalized if form.population else fpo.normalized
        told = []
        with replaced(fpo, "normalized", normalise):
            for order in orders:
                for chosen in order.split(PIECES):
                    samples = (
                        minibatch(ours, data, chosen, form)
                        if form.pieces
                        else whole[rows[:, chosen].flatten()]
                    )
                    told.append(ours.learn(samples))
        found = {
            "deviation": normalizer.variance.sqrt().numpy().copy(),
            "ratio": ratio.mean().numpy(),
            "policy losses": np.stack([one["policy_loss"].numpy() for one in told]),
            "value losses": np.stack([one["value_loss"].numpy() / 2 for one in told]),
            "clipped": np.stack([one["clip_share"].numpy() for one in told]),
            "action": arrays["latent"],
            "stored losses": arrays["loss"],
            **weights_of(ours),
        }
        normalizer.see(later)
        found["later deviation"] = normalizer.variance.sqrt().numpy().copy()
        return arrays | start, found


class Fpo(Peer):
    """The authors' FPO."""

    name, package, side, needs = "FPO", "jax", "with_fpo.py", "fpo"
    requirements = (
        "jax==0.7.0", "jaxlib==0.7.0", "optax==0.2.5", "jax_dataclasses==1.6.3", "numpy==1.26.4",
    )  # fmt: skip

    def version(self, versions: Mapping[str, str], settings: Settings) -> str:
        """Return ten digits of the SHA-256 of each file that runs; none has a version."""
        return digits_of(Path(settings["fpo"]) / FOLDER, FILES)

    def ask(self, folder: Path, settings: Settings) -> list[Check]:
        """Give weights, a rollout and the order of its pieces, and take our own updates."""
        checks: list[Check] = []
        for part in PARTS:
            arrays, ours = updated(part, Form())
            write_arrays(folder / part.name, arrays)
            config = {
                "flow_steps": FLOW_STEPS, "n_samples_per_action": PAIRS, "batch_size": PIECES,
                "discounting": DISCOUNT, "gae_lambda": DECAY, "learning_rate": RATE,
                "num_envs": ENVS, "num_minibatches": MINIBATCHES, "unroll_length": PIECE,
                "num_updates_per_batch": EPOCHS, "reward_scaling": REWARD_SCALE,
                "clipping_epsilon": CLIP, **part.config,
            }  # fmt: skip
            settings_of = {
                "checkout": str(Path(settings["fpo"]).resolve() / FOLDER), "obs_dim": OBS,
                "action_dim": HORIZON * ACTION, "config": config,
            }  # fmt: skip
            write_settings(folder / part.name, settings_of)
            checks += limited(part, ours) if part.time_limit else agreeing(part, ours)
        return checks + deviating(PARTS[0])


def digits_of(folder: Path, files: Sequence[str]) -> str:
    """Return ten digits of the SHA-256 of each of some files, beside its name."""
    return ", ".join(f"{Path(file).name} {sha256_file(folder / file)[:10]}" for file in files)


def agreeing(part: Part, ours: Mapping[str, Any]) -> list[Check]:
    """Return what is compared where the deviations are switched off."""
    words = {
        "action": "ends of the flow from the same noise",
        "stored losses": "losses of the pairs when it acts",
        "deviation": "standard deviation of the observations of a first rollout",
        "ratio": "mean ratio before the first step",
        "policy losses": f"policy loss of each minibatch of {EPOCHS} epochs on one rollout",
        "value losses": "value loss of each of these minibatches",
        "clipped": "share of clipped ratios in each of these minibatches",
    }
    checks = [
        Check(part.name, name, what, {name: ours[name]}, TOLERANCE) for name, what in words.items()
    ]
    for group in ("actor", "critic"):
        weights = {name: array for name, array in ours.items() if name.startswith(f"{group} ")}
        what = f"weights of the {group} after these updates"
        checks.append(Check(part.name, group, what, weights, TOLERANCE))
    return checks


def limited(part: Part, ours: Mapping[str, Any]) -> list[Check]:
    """Return what is compared of a rollout in which two episodes end by the clock."""
    what = "value losses of a rollout in which two episodes end by the clock"
    found = {"value losses": ours["value losses"]}
    return [Check(part.name, "value losses", what, found, 1e-3, LIMIT)]


def deviating(part: Part) -> list[Check]:
    """Return what differs where one deviation alone is on."""
    own = {
        "early": updated(part, Form(early=False))[1],
        "pieces": updated(part, Form(pieces=False))[1],
        "undecayed": updated(part, Form(undecayed=False))[1],
        "population": updated(part, Form(population=False))[1],
    }
    rows = (
        ("ratio, own statistics", "ratio", "early", SHIFTED, "mean ratio before the first step"),
        ("deviation of two rollouts", "later deviation", "early", COUNTED,
         "standard deviation of the observations of two rollouts"),
        ("value losses, computed once", "value losses", "pieces", ONCE,
         "value losses with targets of the whole rollout"),
        ("policy losses, own advantages", "policy losses", "undecayed", UNDECAYED,
         "policy losses with generalised advantages"),
        ("policy losses, own normalisation", "policy losses", "population", SAMPLE,
         "policy losses with the variance of advantages over M - 1"),
    )  # fmt: skip
    return [
        Check(part.name, name, what, {theirs: own[form][theirs]}, 1e-4, why)
        for name, theirs, form, why, what in rows
    ]


PEERS: tuple[Peer, ...] = (Fpo(),)
