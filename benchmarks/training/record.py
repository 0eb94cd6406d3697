"""What is written of a run: rows of its evaluations, its summary, the contract of its policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab.algorithms.base import Algorithm
from trimtab.algorithms.common.adam import Adam
from trimtab.benchmarks.training.evaluate import SUCCESS_RULE, Scores
from trimtab.benchmarks.training.identity import HASH_VERSION, PROTOCOL_REVISION, revision_of
from trimtab.benchmarks.training.plan import Plan
from trimtab.benchmarks.training.rows import OVERLAP, STOPPED_EARLY, EpisodeRow
from trimtab.benchmarks.training.settings.config import RunConfig
from trimtab.envs.core.spec import EnvSpec
from trimtab.policies.base import Policy

__all__ = ["Record", "is_deterministic", "protocol_of", "results_of"]


def protocol_of(env: EnvSpec, act_steps: int, *, deterministic: bool) -> dict[str, Any]:
    """Return what every row of an evaluation in a task says of how it came about."""
    return {
        "fingerprint": env.fingerprint,
        "protocol_revision": PROTOCOL_REVISION,
        "act_steps": act_steps,
        "deterministic": deterministic,
        "success_rule": SUCCESS_RULE if env.success_key is not None else None,
        "horizon": env.horizon,
        "control_hz": env.control_rate,
    }


def is_deterministic(config: RunConfig, policy: Policy) -> bool:
    """Return whether a run's policy is judged with zero noise: as set, or as its kind is judged."""
    chosen = config["eval_deterministic"]
    return policy.evaluate_deterministic if chosen is None else bool(chosen)


@dataclass(frozen=True)
class Record:
    """Writes down what a run found.

    Attributes:
        plan: what the run is made of.
        policy_label: what result tables call its policy.
    """

    plan: Plan
    policy_label: str

    def rows(
        self, scores: Scores, algorithm: Algorithm, *, stopped: bool, env_steps: int, updates: int
    ) -> list[EpisodeRow]:
        """Return a row for each episode of an evaluation.

        Args:
            scores: what the judge found.
            algorithm: the learner, whose policy was judged.
            stopped: whether a callback has ended the run before its end.
            env_steps: environment steps of the run so far.
            updates: updates of the run so far.
        """
        plan = self.plan
        config = plan.config
        protocol: dict[str, Any] = {
            **protocol_of(
                plan.env, plan.act_steps, deterministic=is_deterministic(config, algorithm.policy)
            ),
            "hash_version": HASH_VERSION,
            "revision": revision_of(type(algorithm)),
            "policy_revision": revision_of(type(algorithm.policy)),
            "delay_ms": 0.0,  # the simulator waits for the policy
            "device": config["device"],
        }
        told = {STOPPED_EARLY: stopped, OVERLAP: config["overlap"]}
        marks = {name: 1.0 for name, holds in told.items() if holds}
        return [
            EpisodeRow(
                suite=config["suite_name"],
                env=plan.env.id,
                algorithm=config.algorithm,
                policy=self.policy_label,
                dataset=plan.dataset.id if plan.dataset is not None else None,
                base=plan.base_label,
                seed=config["seed"],
                env_steps=env_steps,
                updates=updates,
                config_hash=plan.config_hash,
                **protocol,
                **(vars(score) | {"metrics": {**score.metrics, **marks}}),
            )
            for score in scores.episodes
        ]

    def summary(
        self,
        scores: Scores,
        algorithm: Algorithm,
        evaluations: Sequence[Mapping[str, Any]],
        *,
        env_steps: int,
        updates: int,
        seconds: float,
        ending: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what ``result.json`` says: where the run ended, and its last scores.

        Args:
            scores: those of the last evaluation.
            algorithm: the learner.
            evaluations: where the run was at each of them: environment steps, updates, episodes
                that it had finished, and seconds.
            env_steps: environment steps of the run.
            updates: updates of the run.
            seconds: wall time of the run.
            ending: what :meth:`ending` says of it.
        """
        summary: dict[str, Any] = {
            "env": self.plan.env.id,
            "algorithm": self.plan.config.algorithm,
            "policy": self.policy_label,
            "seed": self.plan.config["seed"],
            "config_hash": self.plan.config_hash,
            "env_steps": env_steps,
            "updates": updates,
            "episodes": len(scores.episodes),
            "return": scores.mean_return,
            "success": scores.success_rate,
            "seconds": round(seconds, 2),
            "trained_parameters": _trained_parameters(algorithm),
            "offline_share": self.plan.config["offline_share"],
            "evaluations": list(evaluations),
        }
        overlap = {OVERLAP: True} if self.plan.config["overlap"] else {}
        return {**summary, **overlap, **ending}

    def ending(self, reached: bool, stopped: tuple[int, int] | None = None) -> dict[str, Any]:
        """Return how a run ended, where that was not by its steps alone.

        Args:
            reached: whether it reached the success at which it was to stop, if there is one.
            stopped: where a callback ended it, and where it would have ended; None: none did.
        """
        wanted = self.plan.config["stop_at_success"]
        found = {} if wanted is None else {"stop_at_success": wanted, "reached": reached}
        early = {} if stopped is None else {STOPPED_EARLY: {"at": stopped[0], "of": stopped[1]}}
        return {**found, **early}

    def results(self, scores: Scores) -> dict[str, Any]:
        """Return what a bundle says of the scores of its policy."""
        return results_of(
            {
                "env": self.plan.env.id,
                "episodes": len(scores.episodes),
                "return": scores.mean_return,
                "success": scores.success_rate,
                "held_out": None if scores.fit is None else scores.fit.to_json(),
            }
        )

    def contract(
        self, *, env_steps: int, updates: int, ending: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what a bundle says of the task and of how its policy was trained."""
        plan = self.plan
        env = plan.env
        return {
            **plan.described,
            "env": env.id,
            "env_options": dict(env.options),
            "env_horizon": env.horizon,
            "fingerprint": env.fingerprint or None,
            "control_rate": env.control_rate,
            "act_steps": plan.act_steps,
            "training": {
                "algorithm": self.plan.config.algorithm,
                "policy": self.policy_label,
                "dataset": plan.dataset.id if plan.dataset is not None else None,
                "dataset_hash": plan.dataset.content_hash if plan.dataset is not None else None,
                "base": plan.base_label,
                "seed": self.plan.config["seed"],
                "env_steps": env_steps,
                "updates": updates,
                "config_hash": plan.config_hash,
                **ending,
            },
        }


def results_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a model card's table of results, from what ``result.json`` says."""
    played = ("env", "episodes", "return", "success") if summary["episodes"] else ()
    held_out = summary.get("held_out")
    fit = {"held-out action error, standard deviations": held_out["error"]} if held_out else {}
    return {**{key: summary[key] for key in played}, **fit}


def _trained_parameters(algorithm: Algorithm) -> int:
    """Return how many numbers the learner's optimisers move, those of critics included."""
    return sum(weight.numel() for weight in _moved(algorithm).values())


def _moved(algorithm: Algorithm) -> dict[int, Tensor]:
    """Return the weights of a learner's optimisers, and of learners that it is made of."""
    found: dict[int, Tensor] = {}
    for part in algorithm.state().values():
        if isinstance(part, Adam):
            found |= {id(weight): weight for weight in part.parameters}
        elif isinstance(part, Algorithm):
            found |= _moved(part)
    return found
