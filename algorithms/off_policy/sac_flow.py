"""SAC Flow: soft actor-critic whose actor is a flow with a gated velocity (variant Flow-G).

Zhang et al., "SAC Flow: Sample-Efficient Reinforcement Learning of Flow-Based Policies via
Velocity-Reparameterized Sequential Modeling" (arXiv 2509.25756), and the authors' code
(github.com/Elessar123/SAC-FLOW, from_scratch_code/SAC_flow_gru_jax.py). An action is the end of K
Euler steps with noise, and each step has a Gaussian density, so the path has one:

- path:    x_0 ~ N(0, I),  x_{k+1} ~ N(x_k + v(x_k, t_k, s) / K, std(s)^2),  a = tanh x_K
           log p = log N(x_0) + sum_k log N(x_{k+1}; ...) - sum log (1 - a^2)
- flow:    v = gate (candidate - x),  as of a gated recurrent unit; its gate keeps the gradient
           through all K steps, which a plain velocity lets explode or vanish
- losses:  those of SAC, with log p in place of log pi(a|s)

log p is the density of the *path*, not of the action, so the entropy that SAC rewards is that of
noises and actions together: it holds the noise of the steps up and the actions inside the box, and
does not ask ``x_0`` to be spread over several actions. A target of 0 for it is the authors'.

An adaptation (``faithful`` is False), because other networks learn: the authors' critics are those
of CrossQ (1024 wide, batch renormalisation, no target network), here SAC's with targets, and their
actor renormalises its inputs. So the only difference to SAC is the actor. Further deviations:

- other settings are SAC's of this library (there: rates 1e-3 for critics and temperature and 3e-4
  for the actor, which learns in every third update, Adam's first decay 0.5, batches of 512, 50,000
  steps of warm-up, 1M steps);
- gate and candidate are 128 wide, the default of the authors' network (their script has 512);
- the density is that of actions scaled to [-1, 1] (there: raw ones, whose entropy depends on the
  task's units);
- judged at zero noise (there: returns of the noisy actions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from trimtab.algorithms.base import Setup
from trimtab.algorithms.common.adam import Adam
from trimtab.algorithms.off_policy.sac import SAC
from trimtab.policies.kinds.gated_flow import GatedFlowPolicy
from trimtab.settings import Bounds, NonNegative, Positive, Size, Steps


class SACFlow(SAC):
    """SAC with a gated flow for its actor, and the path's density for the action's.

    Args:
        setup: as in SAC.
        flow_steps: K.
        flow_hidden: widths of the hidden layers of gate and candidate.
        log_std_hidden: widths of the hidden layers of the steps' log standard deviation.
        log_std_min: lower bound of the steps' log standard deviation.
        learning_rate: as in SAC.
        initial_temperature: alpha at the start.
        target_entropy: of paths; see above.
        sac: settings of SAC; ``hidden`` and ``layer_norm`` are the critics'.
    """

    faithful: ClassVar[bool] = False
    unused_settings = frozenset({"actor_layer_norm", "entropy_per_dimension"})
    capturable = True
    actor: GatedFlowPolicy  # type: ignore[assignment]

    def __init__(
        self,
        setup: Setup,
        *,
        flow_steps: Steps = 4,
        flow_hidden: Sequence[Size] = (128,),
        log_std_hidden: Sequence[Size] = (512, 512),
        log_std_min: Annotated[float, Bounds(most=2)] = -5.0,
        learning_rate: NonNegative = 3e-4,
        initial_temperature: Positive = 0.2,
        target_entropy: float = 0.0,
        **sac: Any,
    ) -> None:
        super().__init__(
            setup, learning_rate=learning_rate, initial_temperature=initial_temperature,
            target_entropy=target_entropy, **sac,
        )  # fmt: skip
        # SAC's losses read actions and log p from the actor's ``sample_with_log_prob``.
        self.actor = GatedFlowPolicy(
            setup.spec, steps=flow_steps, hidden=flow_hidden, log_std_hidden=log_std_hidden,
            log_std_min=log_std_min,
        ).to(setup.device)  # fmt: skip
        self.policy = self.actor
        self.actor_optimizer = Adam(self.actor.parameters(), learning_rate)
