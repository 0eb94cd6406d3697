"""What a run's evaluations are: episodes in its task, the fit to held-out episodes, or both.

The fit also decides which policy is exported, and when a run ends, where ``stop_after`` asks for
it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from trimtab.benchmarks.training.device_evaluate import DeviceEvaluator
from trimtab.benchmarks.training.evaluate import Evaluator, Scores
from trimtab.benchmarks.training.held_out import Fit, HeldOut
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.record import is_deterministic
from trimtab.benchmarks.training.trials import make_evaluator
from trimtab.benchmarks.training.without_task import has_task
from trimtab.policies.base import Policy

__all__ = ["RunJudge"]

logger = logging.getLogger(__name__)


class RunJudge:
    """Judges the policy of a run, always in the same way.

    Attributes:
        last: the last evaluation in words, after a comma; empty before there was one.

    Args:
        plan: what the run is made of.
        policy: the one that is judged; its kind decides what of the data it is compared with.
        foreign_code: around each call of the environments.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy,
        foreign_code: AbstractContextManager[None] | None = None,
    ) -> None:
        self._plan, config = plan, plan.config
        self._patience = config["stop_after"]
        self._best: dict[str, Any] | None = None
        self._noted, self._since = -1, 0
        self._latest: float | None = None
        self.last = ""
        self.evaluator: Evaluator | DeviceEvaluator | None = None
        self.held_out: HeldOut | None = None
        if plan.split.held_out is not None:
            assert plan.split.training is not None
            self.held_out = HeldOut(
                plan.split.training,
                plan.split.held_out,
                window=plan.act_steps,
                history=policy.spec.history,
                parts=plan.env.obs_parts if plan.observations != "flat" else None,
                seed=config["eval_seed"],
            )
        if has_task(plan.env.id):
            self.evaluator = make_evaluator(
                plan, config["eval_episodes"], config["eval_seed"], policy, foreign_code
            )

    @property
    def exhausted(self) -> bool:
        """Whether as many evaluations as ``stop_after`` were no better than the best one."""
        return self._patience is not None and self._since >= self._patience

    def judge(self, policy: Policy, updates: int, check: Callable[[], None]) -> Scores:
        """Return the scores of a policy.

        Args:
            policy: that of the run.
            updates: that it has had.
            check: called before every decision in the task; what it raises ends the evaluation.
        """
        zero_noise, scores = is_deterministic(self._plan.config, policy), Scores(())
        if self.evaluator is not None:
            scores = self.evaluator.judge_policy(policy, deterministic=zero_noise, check=check)
        if self.held_out is not None:
            scores = dataclasses.replace(scores, fit=self._fit(self.held_out, policy, updates))
        self.last = f", {scores.words}" if scores.words else ""
        return scores

    def _fit(self, held_out: HeldOut, policy: Policy, updates: int) -> Fit:
        """Return the fit of a policy, and note whether it is the best one so far."""
        fit = held_out.judge(policy, deterministic=is_deterministic(self._plan.config, policy))
        if self._patience is None or self._noted == updates:  # a repeated one counts once
            return fit
        same, self._noted, self._latest = fit.error == self._latest, updates, fit.error
        if same:  # the policy rests, while another part of the method learns
            return fit
        if self._best is None or fit.error < self._best["error"]:
            weights = {k: v.detach().clone() for k, v in policy.state_dict().items()}
            self._best = {"error": fit.error, "updates": updates, "weights": weights}
            self._since = 0
        else:
            self._since += 1
        return fit

    def choose(self, policy: Policy, updates: int) -> bool:
        """Give a policy at the end of its run the weights with which it is exported.

        Args:
            policy: as it was trained to the end.
            updates: that it has had.

        Returns:
            Whether these are others than it had.
        """
        if self._patience is None:
            return False
        assert self.held_out is not None
        self._fit(self.held_out, policy, updates)
        assert self._best is not None
        if self._best["updates"] == updates:
            return False
        policy.load_state_dict(self._best["weights"])
        logger.info("the policy of update %d is exported", self._best["updates"])
        return True

    def summary(self, scores: Scores) -> dict[str, Any]:
        """Return what ``result.json`` says of the held-out episodes; nothing without any.

        Args:
            scores: those of the exported policy.
        """
        if self.held_out is None or scores.fit is None:
            return {}
        found: dict[str, Any] = {
            **scores.fit.to_json(),
            "controls": {name: fit.to_json() for name, fit in self.held_out.controls.items()},
            "episodes": list(self._plan.split.numbers),
            "steps": self.held_out.steps,
        }
        if self._best is not None:
            found |= {"best_at": self._best["updates"], "ended_early": self.exhausted}
        return {"held_out": found}

    def told(self, scores: Scores) -> dict[str, Any]:
        """Return what a bundle's contract says of the held-out episodes; nothing without any."""
        if scores.fit is None:
            return {}
        exported = {} if self._best is None else {"best_of_held_out": self._best["updates"]}
        return {"held_out_error": scores.fit.error, **exported}

    def state_dict(self) -> dict[str, Any] | None:
        """Return the best policy so far, and how long ago it was; None where none is kept."""
        if self._patience is None:
            return None
        return {"best": self._best, "noted": self._noted, "since": self._since,
                "latest": self._latest}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on where ``state`` was taken."""
        if state is not None:
            self._best, self._noted = state["best"], int(state["noted"])
            self._since, self._latest = int(state["since"]), state["latest"]

    def close(self) -> None:
        """Close the environments."""
        if self.evaluator is not None:
            self.evaluator.close()
