"""Stages of a learner of latents whose decoder is refitted between them, as in GoRL.

"GoRL: An Algorithm-Agnostic Framework for Online Reinforcement Learning with Generative Policies"
(arXiv 2512.02581), whose later title is "Training Diffusion Policies via Prior-Mapping
Co-Evolution". In stage m = 0 ... n - 1:

1. encode:  a learner changes the encoder pi(z|s) alone; a = tanh(g(s, z)), and g stays. In stage 0
            g(s, z) = z. The weights with which the encoder earned the most in this stage are kept.
2. collect: these weights act, sampled as in learning, and x = g(s, z) is stored, before the tanh.
3. refit:   a new g, from fresh weights, learns x from z ~ N(0, I) by the decoder's own imitation
            loss: a random draw, not the z that led to x. The weights with the least loss on a part
            of the data that it never learns from are kept.

Then the next stage begins with that g and with a fresh encoder; the last stage only encodes. As
z ~ N(0, I) now decodes to what the last stage did, the encoder begins near it and improves on it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from trimtab.algorithms.base import Algorithm, Needs, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.ring import Ring
from trimtab.algorithms.phases import Budget, Feed, Phase
from trimtab.errors import TrimtabError
from trimtab.policies.base import Policy
from trimtab.policies.features import features, observations
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.squashed import SquashedPolicy
from trimtab.settings import Bounds, Count, NonNegative, Positive, Size
from trimtab.types import Batch, Metrics, Obs, PolicySpec

__all__ = ["LatentStages"]

LIMIT = 10.0
"""Latents and what is decoded of them are clipped here, where the tanh is 1 in 32 bits."""


class LatentStages(Algorithm):
    """The stages, around a learner that takes latents for actions.

    A method inherits from this class and then from its learner, which has ``self.actor``.

    Attributes:
        learner: class of the learner, of which a fresh one is made for each stage.
        stage: number m of the stage.

    Args:
        setup: needs ``policy``, the kind of the decoder.
        stage_lengths: environment steps of the stages, in shares of all that are learned from. A
            learner of rollouts learns from the whole ones of a stage; what is left is dropped.
        collect_share: share of ``online_steps`` that is collected for each refit.
        kept_decisions: the newest of the collected decisions that a refit learns from; one of them
            validates.
        decoder_updates: updates of a refit.
        decoder_batch_size: decisions in such an update.
        decoder_learning_rate: Adam's, for the decoder.
        validation_share: share of the collected decisions that only choose the decoder's weights.
        validate_every: updates between two looks at them.
        score_episodes: episodes, the last ones, whose mean return is the encoder's score; at least
            one of each environment.
        keywords: those of the learner.

    Raises:
        TrimtabError: if the policy has no imitation loss, its noise is not one latent chunk, or
            there is no stage.
    """

    needs = Needs({"policy"})
    unsaved = frozenset({"actor", "decoder"})  # parts of the policy
    learner: ClassVar[type[Any]]
    actor: Any

    def __init__(
        self,
        setup: Setup,
        *,
        stage_lengths: Sequence[Positive] = (2.0, 2.0, 1.0, 1.0),
        collect_share: Annotated[float, Bounds(above=0, below=1)] = 0.05,
        kept_decisions: Annotated[int, Bounds(least=2, most=1 << 20)] = 100_000,
        decoder_updates: Count = 2_000,
        decoder_batch_size: Size = 256,
        decoder_learning_rate: NonNegative = 3e-4,
        validation_share: Annotated[float, Bounds(above=0, below=1)] = 0.1,
        validate_every: Count = 50,
        score_episodes: Size = 10,
        **keywords: Any,
    ) -> None:
        if not stage_lengths:
            raise TrimtabError("algorithm.stage_lengths: it is empty; give a length for each stage")
        self.setup, self.keywords = setup, keywords
        self.stage_lengths, self.collect_share = tuple(stage_lengths), collect_share
        self.decoder_updates, self.decoder_batch_size = decoder_updates, decoder_batch_size
        self.decoder_learning_rate, self.validate_every = decoder_learning_rate, validate_every
        self.stage, self.collecting, self.fits = 0, False, 0
        self.decoder = SquashedPolicy(setup.spec, make_decoder(setup)).to(setup.device)
        self.latents = replace(setup, spec=latent_spec(self.decoder, LIMIT))
        super().__init__(self.latents, **keywords)  # type: ignore[call-arg]  # that of the learner
        self.actor.normalizer.action_scale.fill_(1.0)  # its units are those of z
        self.policy = LatentPolicy(self.actor, self.decoder)
        self.candidate = make_decoder(setup).to(setup.device)
        self.fitted = copy.deepcopy(self.candidate).requires_grad_(False)
        self.decoder_optimizer = Adam(self.candidate.parameters(), decoder_learning_rate)
        shape = (setup.spec.horizon, setup.spec.action_dim)
        self.collected = Collected(setup.spec, kept_decisions, shape, validation_share)
        self.collected.to(setup.device)
        self.scores = BestEncoder(self.actor, setup.num_envs, score_episodes).to(setup.device)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Encode, collect and refit in turn; collected steps count as steps of the run.

        Raises:
            TrimtabError: if the run has a dataset to learn from, or too few steps for the stages: a
                stage of a learner of rollouts has at least one of these.
        """
        if budget.offline_steps:
            raise TrimtabError(
                f"offline_steps={budget.offline_steps}: {type(self).__name__} learns from what it "
                "does itself; leave it out"
            )
        if not budget.online_steps:
            return ()
        stages, each = len(self.stage_lengths), self.setup.num_envs * self.setup.spec.horizon
        decisions = budget.online_steps // each  # of all environments side by side
        # At least two rows, of which one validates.
        least = -(-2 // self.setup.num_envs)
        collected = max(int(self.collect_share * decisions), least)
        learned = decisions - (stages - 1) * collected
        shares = [share / sum(self.stage_lengths) for share in self.stage_lengths]
        ends = [round(learned * end) for end in itertools.accumulate(shares)]
        lengths = [end - start for start, end in itertools.pairwise([0, *ends])]
        needed = max(self.pace.rollout_steps, 1)  # or a stage would pass without an update
        if min(lengths) < needed:
            shorter = ", or a smaller algorithm.rollout_steps" if self.pace.rollout_steps else ""
            raise TrimtabError(
                f"online_steps={budget.online_steps}: {stages} stages of learning of at least "
                f"{needed * each} steps and {stages - 1} collections of {collected * each} do not "
                f"fit into it; give it more steps, or fewer algorithm.stage_lengths{shorter}"
            )
        phases: list[Phase] = []
        for stage, length in enumerate(lengths):
            phases += self.encoder_phases(stage, length * each)
            if stage < stages - 1:
                phases += [
                    Phase(
                        f"collect {stage}", collected * each, "steps", Feed.EXPERIENCE, None,
                        begin=self.begin_collecting,
                    ),
                    Phase(
                        f"refit {stage}", self.decoder_updates, "updates", self.collected, self.fit,
                        batch_size=self.decoder_batch_size, begin=self.begin_fitting,
                    ),
                ]  # fmt: skip
        # What is left after the last whole decision belongs to the last stage.
        rest = budget.online_steps - decisions * each
        return (*phases[:-1], replace(phases[-1], length=phases[-1].length + rest))

    def encoder_phases(self, stage: int, steps: int) -> list[Phase]:
        """Return the phases in which the encoder of a stage learns.

        Args:
            stage: its number.
            steps: environment steps of the stage.
        """
        begin = partial(self.begin_stage, stage)
        name, feed = f"encode {stage}", Feed.EXPERIENCE
        return [Phase(name, steps, "steps", feed, self.update, begin=begin, fresh=stage > 0)]

    def begin_stage(self, stage: int) -> None:
        """Take the refitted decoder and a fresh encoder, with all that learns it."""
        self.stage, self.collecting = stage, False
        if stage:
            self.decoder.take(self.fitted)
            fresh = self.learner(self.latents, **self.keywords)
            for name, part in fresh.state().items():
                mine = self.actor if part is fresh.policy else getattr(self, name)
                mine.load_state_dict(part.state_dict())
            self.actor.normalizer.action_scale.fill_(1.0)
        self.scores.begin()
        self.apply_stage()

    def apply_stage(self) -> None:
        """Set what depends on the stage's number. By default nothing does."""

    def begin_collecting(self) -> None:
        """Act with the stage's best encoder, and store what it does."""
        self.collecting = True
        self.scores.restore(self.actor)
        self.collected.written = 0

    def begin_fitting(self) -> None:
        """Begin a new decoder, in the units of what was collected."""
        self.collecting, self.fits = False, 0
        self.collected.shuffle()
        self.candidate.load_state_dict(make_decoder(self.setup).state_dict())
        self.collected.fit_normalizer(self.candidate)
        self.fitted.load_state_dict(self.candidate.state_dict())
        fresh = Adam(self.candidate.parameters(), self.decoder_learning_rate)
        self.decoder_optimizer.load_state_dict(fresh.state_dict())

    def fit(self, data: Batch) -> Metrics:
        """Take one step of the new decoder; keep its weights if their validation is the best."""
        loss = self.candidate.bc_loss(data)
        self.decoder_optimizer.step(loss)
        if self.validates:
            self.validate()
        self.fits += 1
        least = self.collected.least_loss.clone()
        return {"decoder_loss": loss.detach(), "validation_loss": least}

    @property
    def validates(self) -> bool:
        """Whether the next update of the decoder looks at the validation part."""
        return self.fits == 0 or (self.fits + 1) % self.validate_every == 0

    @torch.no_grad()
    def validate(self) -> None:
        """Keep the new decoder's weights if no earlier ones had a lower validation loss."""
        loss = self.candidate.bc_loss(self.collected.validation())
        better = loss < self.collected.least_loss
        for mine, theirs in zip(self.fitted.parameters(), self.candidate.parameters(), strict=True):
            mine.copy_(torch.where(better, theirs, mine))
        self.collected.least_loss.copy_(torch.minimum(loss, self.collected.least_loss))

    @property
    def branch(self) -> Hashable:
        """The stage; and in a refit, whether the update validates, and on how many rows."""
        return super().branch, self.stage, self.validates, self.collected.size

    @torch.no_grad()
    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Return raw actions ``[N, H, A]`` to execute, and store them while that is due.

        Args:
            obs: raw observations ``[N, O]``, or parts.
            latent: z, ``[N, H, A]``.
        """
        self.scores.acted()
        chunk = self.decoder.before_tanh(obs, latent)
        if self.collecting:
            self.collected.keep(features(obs, self.setup.spec), chunk)
        return self.decoder.squash(chunk)

    def on_transition(self, reward: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Add rewards to the returns of the running episodes."""
        self.scores.running += reward

    def on_episode_end(self, rows: Sequence[int]) -> None:
        """Score the encoder by whole episodes of its stage."""
        self.scores.score(self.actor, rows, counts=not self.collecting)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly: nested tensors and numbers."""
        numbers = {"stage": self.stage, "collecting": self.collecting, "fits": self.fits}
        return {**super().state_dict(), "stages": numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state``, so that learning continues exactly from it."""
        super().load_state_dict(state)
        numbers = state["stages"]
        self.stage, self.fits = int(numbers["stage"]), int(numbers["fits"])
        self.collecting = bool(numbers["collecting"])
        self.apply_stage()


def make_decoder(setup: Setup) -> Policy:
    """Return a decoder with fresh weights, of the configured kind, over actions before the tanh.

    Raises:
        TrimtabError: if policies of this kind have no imitation loss.
    """
    assert setup.policy is not None
    bound = (LIMIT,) * setup.spec.action_dim
    low = tuple(-one for one in bound)
    made = setup.policy(replace(setup.spec, action_low=low, action_high=bound))
    if type(made).bc_loss is Policy.bc_loss:
        raise TrimtabError(
            f"a {made.kind} policy has no imitation loss, by which a decoder is refitted; choose "
            "policy=flow or policy=diffusion"
        )
    return made


class Collected(Ring):
    """Observations and actions before the tanh, and which of them validate; meets ``Source``.

    Args:
        spec: shapes of the task.
        rows: most decisions.
        shape: of a chunk.
        validation_share: share of the rows that only validate.
    """

    obs: Tensor  # [R, O] raw
    action: Tensor  # [R, H, A] before the tanh
    least_loss: Tensor  # of the validation part, in this refit

    def __init__(
        self, spec: PolicySpec, rows: int, shape: tuple[int, int], validation_share: float
    ) -> None:
        super().__init__(rows, obs=(spec.obs_dim,), action=shape)
        self.spec, self.validation_share = spec, validation_share
        self.register_buffer("least_loss", torch.tensor(math.inf))

    @property
    def held_out(self) -> int:
        """How many rows validate: the first ones, at least one, and never all."""
        return max(min(max(int(self.validation_share * self.size), 1), self.size - 1), 0)

    def shuffle(self) -> None:
        """Put the rows in a random order, so that the first ones are any of them."""
        order = torch.randperm(self.size, device=self.obs.device)
        for name in self.names:
            ring = self.get_buffer(name)
            ring[: self.size] = ring[order]
        self.least_loss.fill_(math.inf)

    def fit_normalizer(self, policy: Policy) -> None:
        """Let a policy read observations standardised, and act within the range of the actions."""
        obs, action = self.obs[: self.size], self.action[: self.size].flatten(0, 1)
        low, high = action.amin(0), action.amax(0)
        policy.normalizer.obs_shift.copy_(obs.mean(0))
        policy.normalizer.obs_scale.copy_(obs.std(0, correction=0) + 1e-3)
        policy.normalizer.action_shift.copy_((high + low) / 2)
        policy.normalizer.action_scale.copy_(((high - low) / 2).clamp_min(1e-4))

    def sample(self, batch_size: int) -> Batch:
        """Return decisions that do not validate, drawn with replacement."""
        first = self.held_out
        rows = torch.randint(first, self.size, (batch_size,), device=self.obs.device)
        return self._batch(self.obs[rows], self.action[rows])

    def validation(self) -> Batch:
        """Return the decisions that validate."""
        return self._batch(self.obs[: self.held_out], self.action[: self.held_out])

    def _batch(self, obs: Tensor, action: Tensor) -> Batch:
        """Return decisions as a batch without rewards."""
        seen, nothing = observations(obs, self.spec), torch.zeros_like(action[:, 0, 0])
        valid = torch.ones_like(action[..., 0], dtype=torch.bool)
        return Batch(seen, action, nothing, seen, nothing, valid, whole=True)


class BestEncoder(nn.Module):
    """The encoder's weights of the moment at which its last episodes had earned the most.

    Args:
        actor: the encoder.
        num_envs: number N of environments.
        episodes: how many of the last episodes a score is the mean of; at least N.
    """

    running: Tensor  # [N] return of each running episode
    best: Tensor  # best score of the stage

    def __init__(self, actor: Policy, num_envs: int, episodes: int) -> None:
        super().__init__()
        self.kept = copy.deepcopy(actor).requires_grad_(False)
        self.last = Ring(max(episodes, num_envs), returns=())
        self.register_buffer("running", torch.zeros(num_envs))
        self.register_buffer("best", torch.tensor(-math.inf))
        self.decisions = self.began = 0  # decisions so far, and those before the stage
        self.first = [0] * num_envs  # decisions before each running episode

    def begin(self) -> None:
        """Begin a stage; episodes that are under way will not count."""
        self.began, self.last.written = self.decisions, 0
        self.best.fill_(-math.inf)

    def acted(self) -> None:
        """Count a decision in every environment."""
        self.decisions += 1

    @torch.no_grad()
    def score(self, actor: Policy, rows: Sequence[int], *, counts: bool) -> None:
        """Take account of ended episodes, and keep the weights if the score is a new best.

        Args:
            actor: the encoder as it is now.
            rows: environments whose episode has just ended.
            counts: whether episodes count now; those that began before the stage never do.
        """
        whole = [row for row in rows if counts and self.first[row] >= self.began]
        if whole:
            self.last.keep(self.running[whole])
        if whole and self.is_scored:
            mean = self.last.get_buffer("returns").mean()
            better = mean > self.best
            for mine, theirs in zip(
                self.kept.state_dict().values(), actor.state_dict().values(), strict=True
            ):
                mine.copy_(torch.where(better, theirs, mine))
            self.best.copy_(torch.maximum(mean, self.best))
        self.running[list(rows)] = 0.0
        for row in rows:
            self.first[row] = self.decisions

    @property
    def is_scored(self) -> bool:
        """Whether enough episodes have ended in the stage for a score."""
        return self.last.size == self.last.rows

    def restore(self, actor: Policy) -> None:
        """Give an encoder the best weights; without a score it keeps its own, the latest."""
        if self.is_scored:
            actor.load_state_dict(self.kept.state_dict())

    def get_extra_state(self) -> dict[str, Any]:
        """Return the counts of decisions, for checkpoints."""
        return {"decisions": self.decisions, "began": self.began, "first": self.first}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Go on with counts of decisions."""
        self.decisions, self.began = int(state["decisions"]), int(state["began"])
        self.first = [int(one) for one in state["first"]]
