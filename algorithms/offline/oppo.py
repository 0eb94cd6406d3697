"""OPPO: offline learning from preferences between stretches of behaviour, without a reward model.

Kang et al., "Beyond Reward: Offline Preference-guided Policy Optimization" (arXiv 2305.16217). An
encoder tells stretches of the data apart by an embedding z; a causal transformer imitates a stretch
given its z; and one embedding z* is moved to where the preferred stretches lie. For pairs (1, 2) of
stretches of K decisions, of which a teacher prefers one (z+) to the other (z-):

- embed:   z = W sum_t [h(s_t) + h(a_t)], with h of a transformer that sees the whole stretch
- decoder and encoder:  L = sum over both of mean |a_t - pi(s_<=t, a_<t, z)|^2
                            + beta T(z*, z+, z-) + lambda sum over both of mean (|z| - 1)^2
           where T(x, y, w) = max(0, |x - y| - |x - w| + margin), and z* gets no gradient
- optimal: one step of z* down T(z*, z+, z-), with embeddings of the encoder that was just moved
- acting:  pi(s_<=t, a_<t, z*)

The teacher is scripted, as in the paper's benchmark: it prefers the stretch that is followed by
more reward, summed over ``foresee`` decisions from its first one on, and says nothing where both
are alike. The learner sees these answers alone, and no reward; the policy asks for none.

The encoder is no part of what acts or of the bundle. Settings are those of the authors' code for
scripted teachers. Not all of the paper's tuned numbers for single datasets were found.

Deviations from the authors' code: their encoder is BERT, whose blocks normalise after and not
before each part, and sums its outputs over the padding as well, where the sum here is over what is
there; where no pair of a batch has a preference, nothing is pulled (theirs would divide by 0);
decisions may be chunks of actions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam, Group
from trimtab.algorithms.common.schedules import UpdateCount, rising
from trimtab.algorithms.phases import Budget, Phase
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.preferred_sequence import PreferredSequencePolicy
from trimtab.policies.networks.sequences import Context, with_memory
from trimtab.policies.networks.transformer import Transformer
from trimtab.settings import Bounds, Natural, NonNegative, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics


class OPPO(Algorithm):
    """Imitate behaviour given its embedding, and find the embedding that is preferred.

    Args:
        setup: needs ``dataset``.
        latent: numbers of an embedding.
        context: decisions K of a stretch, and those that the policy reads.
        foresee: decisions whose rewards the teacher sums.
        embedding: width of the tokens, of encoder and decoder.
        layers: blocks of each transformer.
        heads: attentions side by side in the decoder.
        encoder_heads: attentions side by side in the encoder.
        most_steps: decisions of an episode that are told apart; later ones count as the last.
        dropout: share of the entries that are left out while learning.
        learning_rate: the decoder's, after its rise.
        encoder_learning_rate: the encoder's.
        optimal_learning_rate: that of z*.
        rise_updates: updates over which the decoder's learning rate rises, evenly.
        weight_decay: share of each weight that is taken off it, times its learning rate.
        preference_weight: beta.
        norm_weight: lambda.
        margin: by how much nearer z* the preferred stretch has to lie.
        max_gradient_norm: bound on the norm of the gradient, of encoder and decoder each.
        batch_size: stretches in one update, half as many pairs.
    """

    needs = Needs({"dataset"}, next_observations=False)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        latent: Size = 8,
        context: Annotated[int, Bounds(least=2, most=10_000)] = 20,
        foresee: Annotated[int, Bounds(least=1, most=10_000)] = 200,
        embedding: Size = 128,
        layers: Size = 3,
        heads: Size = 1,
        encoder_heads: int = 2,
        most_steps: Size = 1000,
        dropout: Annotated[float, Bounds(least=0, most=0.99)] = 0.1,
        learning_rate: Share = 1e-4,
        encoder_learning_rate: Share = 1e-4,
        optimal_learning_rate: Share = 1e-3,
        rise_updates: Natural = 10_000,
        weight_decay: Share = 1e-4,
        preference_weight: NonNegative = 0.1,
        norm_weight: NonNegative = 0.1,
        margin: NonNegative = 1.0,
        max_gradient_norm: float = 0.25,
        batch_size: Annotated[int, Bounds(least=2)] = 128,
    ) -> None:
        assert setup.statistics is not None
        if batch_size % 2:
            raise TrimtabError(
                f"algorithm.batch_size={batch_size}: preferences are between two stretches; give "
                "an even number"
            )
        if encoder_heads < 1 or embedding % encoder_heads:
            raise TrimtabError(
                f"algorithm.encoder_heads={encoder_heads}: algorithm.embedding={embedding} must be "
                "a multiple of it"
            )
        self.pace = Pace(batch_size)
        self.dropout, self.margin = dropout, margin
        self.discount = setup.discount
        self.preference_weight, self.norm_weight = preference_weight, norm_weight
        self.learning_rate, self.rise_updates = learning_rate, rise_updates
        self.count = UpdateCount(setup.device)
        self.batch_spec = BatchSpec(sequence=context, n_step=foresee)
        self.policy: PreferredSequencePolicy = PreferredSequencePolicy(
            with_memory(setup.spec, context),
            latent=latent, embedding=embedding, layers=layers, heads=heads, most_steps=most_steps,
        ).to(setup.device)  # fmt: skip
        self.policy.normalizer.standardize(setup.statistics, 1e-6)
        self.encoder = Encoder(self.policy, layers, encoder_heads).to(setup.device)
        optimal = self.policy.optimal
        decoder = [weight for weight in self.policy.parameters() if weight is not optimal]
        self.optimizer = Adam(
            [
                Group(decoder, learning_rate, weight_decay),
                Group(list(self.encoder.parameters()), encoder_learning_rate, weight_decay),
            ],
            max_gradient_norm=max_gradient_norm,
            bounded_apart=True,
        )
        self.optimal_optimizer = Adam([optimal], optimal_learning_rate, weight_decay=weight_decay)

    def update(self, data: Batch) -> Metrics:
        """Take one step of encoder and decoder, then one of z*."""
        assert data.sequence is not None
        optimal = self.policy.optimal
        seen = self.policy.read(
            data.sequence, optimal.detach().expand(*data.sequence.valid.shape, -1)
        )
        first, second = data.reward.chunk(2)  # what the teacher foresees of each pair

        embedded = self.encoder(seen, self.dropout)
        told = embedded[:, None].expand(-1, seen.there.shape[1], -1)
        errors = self.policy.imitation_errors(replace(seen, asked=told), self.dropout)
        counts = seen.there.unflatten(0, (2, -1)).sum((1, 2))
        imitation = (errors.unflatten(0, (2, -1)).sum((1, 2)) / counts).sum()
        preference = preference_loss(optimal.detach(), embedded, first, second, self.margin)
        length = torch.linalg.vector_norm(embedded, dim=1)
        off_sphere = 2 * (length - 1).square().mean()  # of each half, which are as large
        loss = imitation + self.preference_weight * preference + self.norm_weight * off_sphere
        rate = rising(self.learning_rate, self.count(), self.rise_updates)
        self.optimizer.learning_rate = rate
        self.optimizer.step(loss)

        with torch.no_grad():
            embedded = self.encoder(seen, self.dropout)
        pull = preference_loss(optimal, embedded, first, second, self.margin)
        self.optimal_optimizer.step(pull)
        self.count.increase()
        self.updates += 1
        return {
            "action_loss": imitation.detach() / 2,
            "preference_loss": preference.detach(),
            "optimal_loss": pull.detach(),
            "embedding_norm": length.detach().mean(),
            "optimal_norm": optimal.detach().norm(),
            "pairs_told_apart": (first != second).float().mean(),
            "learning_rate": rate,
        }

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return the usual phases.

        Raises:
            TrimtabError: if rewards are discounted: the teacher adds them up as they are.
        """
        if self.discount != 1.0:
            raise TrimtabError(
                f"discount={self.discount:g}: OPPO's teacher sums rewards that are not "
                "discounted; set discount=1"
            )
        return super().phases(budget)


def preference_loss(
    optimal: Tensor, embedded: Tensor, first: Tensor, second: Tensor, margin: float
) -> Tensor:
    """Return how much is missing until preferred stretches are nearer z* than the others.

    It is the mean over the pairs that are told apart, and 0 where there are none.

    Args:
        optimal: z*, ``[Z]``.
        embedded: z of 2P stretches, ``[2P, Z]``; pair i is row i and row P + i.
        first: what the teacher foresees of the first of each pair, ``[P]``.
        second: and of the second.
        margin: by how much nearer it has to be.
    """
    one, other = embedded.chunk(2)
    prefers_first = (first > second)[:, None]
    # Pairs without a preference count 0: to pick the others out would make a GPU wait.
    found = functional.triplet_margin_loss(
        optimal.expand_as(one),
        torch.where(prefers_first, one, other),
        torch.where(prefers_first, other, one),
        margin=margin,
        reduction="none",
    )
    apart = (first != second).to(found.dtype)
    return (found * apart).sum() / apart.sum().clamp_min(1.0)


class Encoder(nn.Module):
    """A transformer that sees a whole stretch: observations and actions to an embedding ``[B, Z]``.

    Args:
        policy: whose sizes it takes.
        layers: blocks of the transformer.
        heads: attentions side by side in each.
    """

    def __init__(self, policy: PreferredSequencePolicy, layers: int, heads: int) -> None:
        super().__init__()
        width, latent = policy.embed_obs.out_features, len(policy.optimal)
        self.most_steps = policy.most_steps
        self.embed_obs = nn.Linear(policy.embed_obs.in_features, width)
        self.embed_action = nn.Linear(policy.embed_action.in_features, width)
        self.embed_step = nn.Embedding(policy.most_steps, width)
        self.norm = nn.LayerNorm(width)
        self.transformer = Transformer(width, layers, heads, causal=False)
        self.embed = nn.Linear(width, latent)

    def forward(self, seen: Context, dropout: float = 0.0) -> Tensor:
        """Return the embedding of each stretch, ``[B, Z]``; padding has no effect."""
        rows, count = seen.there.shape
        when = self.embed_step(seen.step.clamp(0, self.most_steps - 1))
        tokens = torch.stack(
            [self.embed_obs(seen.obs) + when, self.embed_action(seen.action) + when], dim=2
        ).reshape(rows, 2 * count, -1)
        there = seen.there[..., None].expand(-1, -1, 2).reshape(rows, 2 * count)
        found = self.transformer(self.norm(tokens), there, dropout)
        embedded: Tensor = self.embed(torch.where(there[..., None], found, 0.0).sum(1))
        return embedded
