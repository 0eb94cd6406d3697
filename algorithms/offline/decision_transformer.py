"""Decision transformer: offline reinforcement learning as a model of sequences.

Chen et al., "Decision Transformer: Reinforcement Learning via Sequence Modeling" (arXiv
2106.01345). A causal transformer reads the last K decisions of an episode as tokens and is trained
to say the actions of the data:

- tokens:  R_1, s_1, a_1, R_2, s_2, a_2, ...,  R_t = r_t + r_{t+1} + ... + r_T (not discounted);
           each is a linear map of its kind, plus a vector learned for its step t in the episode
- loss:    L = mean |a_t - tanh(f(R_<=t, s_<=t, a_<t))|^2, over all decisions that are no padding
- acting:  R_1 is what is asked for, R_{t+1} = R_t - r_t; the action after s_t is played

``target_return`` is what is asked for unless a policy's user asks for another, in the task's own
rewards. Nothing is bootstrapped, so that a run needs ``discount=1``, and data may lack its last
observations.

Deviations from the authors' code: a robot that tells no rewards asks for the same return all along;
the policy has no heads for observations and returns, whose losses the paper leaves out; with action
chunks a token is a chunk, and R falls by the rewards of all its steps. Padding repeats a decision,
where the code has zeros and -10; nothing looks at it. What an episode's end leaves of a last chunk
is filled with its last action, which is imitated too. Without ``target_return`` the policy is asked
for the best return of the data, where the paper names one for each task.
"""

from __future__ import annotations

import math
from typing import Annotated

from trimtab.algorithms.base import Algorithm, Needs, Pace, Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.common.schedules import UpdateCount, rising
from trimtab.algorithms.phases import Budget, Phase
from trimtab.errors import TrimtabError
from trimtab.policies.kinds.decision_transformer import DecisionTransformerPolicy, with_context
from trimtab.policies.networks.sequences import Context
from trimtab.settings import Bounds, Natural, Share, Size
from trimtab.types import Batch, BatchSpec, Metrics, Sequences


class DecisionTransformer(Algorithm):
    """Imitate the data given the return that followed, and ask for a high one.

    Args:
        setup: needs ``dataset``.
        target_return: what the policy is asked for, in rewards of the task; None: the best return
            of an episode of the data.
        return_scale: what returns are divided by; None: the size of the target.
        context: decisions K that are read, the one of now included.
        embedding: width of the tokens.
        layers: blocks of the transformer.
        heads: attentions side by side in each.
        most_steps: decisions of an episode that are told apart; later ones count as the last.
        dropout: share of the entries that are left out while learning.
        learning_rate: Adam's, after its rise.
        rise_updates: updates over which the learning rate rises to it, evenly.
        weight_decay: share of each weight that is taken off it, times the learning rate.
        max_gradient_norm: bound on the norm of the gradient.
        batch_size: stretches of K decisions in one update.
    """

    needs = Needs({"dataset"}, next_observations=False)
    capturable = True

    def __init__(
        self,
        setup: Setup,
        *,
        target_return: Annotated[float, Bounds(least=-1e9, most=1e9)] | None = None,
        return_scale: Annotated[float, Bounds(least=1e-9)] | None = 1000.0,
        context: Annotated[int, Bounds(least=2, most=10_000)] = 20,
        embedding: Size = 128,
        layers: Size = 3,
        heads: Size = 1,
        most_steps: Size = 1000,
        dropout: Annotated[float, Bounds(least=0, most=0.99)] = 0.1,
        learning_rate: Share = 1e-4,
        rise_updates: Natural = 10_000,
        weight_decay: Share = 1e-4,
        max_gradient_norm: float = 0.25,
        batch_size: Size = 64,
    ) -> None:
        assert setup.statistics is not None
        best = setup.statistics.best_return
        target = target_return if target_return is not None else 0.0 if math.isnan(best) else best
        scale = return_scale if return_scale is not None else abs(target) or 1.0
        self.discount = setup.discount
        self.pace = Pace(batch_size)
        self.dropout = dropout
        self.learning_rate, self.rise_updates = learning_rate, rise_updates
        self.count = UpdateCount(setup.device)
        self.batch_spec = BatchSpec(mc_return=True, sequence=context)
        self.policy: DecisionTransformerPolicy = DecisionTransformerPolicy(
            with_context(setup.spec, context, target),
            embedding=embedding, layers=layers, heads=heads, return_scale=scale,
            most_steps=most_steps,
        ).to(setup.device)  # fmt: skip
        self.policy.normalizer.standardize(setup.statistics, 1e-6)
        self.optimizer = Adam(
            self.policy.parameters(),
            learning_rate,
            weight_decay=weight_decay,
            max_gradient_norm=max_gradient_norm,
        )

    def update(self, data: Batch) -> Metrics:
        """Take one gradient step on what the data did."""
        assert data.sequence is not None
        context = self.context(data.sequence)
        count = context.there.sum()
        loss = self.policy.imitation_errors(context, self.dropout).sum() / count
        rate = rising(self.learning_rate, self.count(), self.rise_updates)
        self.optimizer.learning_rate = rate
        self.optimizer.step(loss)
        self.count.increase()
        self.updates += 1
        return {"action_loss": loss.detach(), "learning_rate": rate, "decisions": count.float()}

    def context(self, data: Sequences) -> Context:
        """Return what the policy reads of stretches of the data, with what came after each."""
        assert data.mc_return is not None
        return self.policy.read(data, data.mc_return[..., None] / self.policy.return_scale)

    def phases(self, budget: Budget) -> tuple[Phase, ...]:
        """Return the usual phases.

        Raises:
            TrimtabError: if returns are discounted: a reward could not be taken off them.
        """
        if self.discount != 1.0:
            raise TrimtabError(
                f"discount={self.discount:g}: a decision transformer reads returns that are not "
                "discounted; set discount=1"
            )
        return super().phases(budget)
