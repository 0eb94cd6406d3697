"""Goals that an episode reached later, in place of those that it was given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from trimtab.datasets.sources.drawing import Starting
from trimtab.datasets.sources.random_state import generator_state, generator_words
from trimtab.errors import TrimtabError
from trimtab.types import Batch, Obs, Tensor

__all__ = ["Drawn", "Goals", "Relabelled"]

_ACHIEVED, _DESIRED = "achieved_goal", "desired_goal"  # parts of an observation


@dataclass(frozen=True)
class Goals:
    """Where a task's goals are in an observation, and what reaching them is worth.

    Where observations have parts, these are ``achieved_goal`` and ``desired_goal``.

    Attributes:
        achieved: entries of a flat observation that say what was reached.
        desired: entries that say what was to be reached, in the same order.
        reward: returns the rewards ``[B]`` of achieved goals ``[B, G]`` where others are desired.
    """

    achieved: tuple[int, ...]
    desired: tuple[int, ...]
    reward: Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]

    def __post_init__(self) -> None:
        if not self.achieved or len(self.achieved) != len(self.desired):
            raise TrimtabError(
                f"goals: {len(self.achieved)} entries are achieved, {len(self.desired)} desired; a "
                "task needs as many of each, at least one"
            )

    def achieved_in(self, obs: Any) -> Any:
        """Return the achieved goals ``[..., G]`` of observations."""
        return obs[_ACHIEVED] if isinstance(obs, Mapping) else obs[..., list(self.achieved)]

    def desired_in(self, obs: Any) -> Any:
        """Return the desired goals ``[..., G]`` of observations."""
        return obs[_DESIRED] if isinstance(obs, Mapping) else obs[..., list(self.desired)]

    def with_desired(self, obs: Obs, goal: Tensor, rows: Tensor) -> Obs:
        """Return observations where some rows have another desired goal.

        Args:
            obs: ``[B, ..., O]``, or parts.
            goal: ``[B, G]``.
            rows: ``[B]`` bool, which ones.
        """
        before = self.desired_in(obs)
        axes = before.dim() - 2  # those of a history, which all have the same goal
        wanted = goal.reshape(len(goal), *[1] * axes, -1).expand_as(before)
        chosen = torch.where(rows.reshape(-1, *[1] * (axes + 1)), wanted, before)
        if isinstance(obs, Mapping):
            return {**obs, _DESIRED: chosen}
        changed = obs.clone()
        changed[..., list(self.desired)] = chosen
        return changed


class Drawn(Protocol):
    """A source that also says where in their episodes the rows of a batch lie."""

    def draw(self, batch_size: int) -> tuple[Batch, Starting]:
        """Return ``batch_size`` transitions and where they begin."""
        ...


class Relabelled:
    """Replaces the desired goals of a share of the rows; meets ``Source``.

    The new goal of a row is what its episode had achieved after a later step (or after its own),
    drawn uniformly from those that are stored: strategy "future" of Andrychowicz et al. (arXiv
    1707.01495), with the reward of the new goal. ``discount`` stays: whether the episode ended is
    not decided by goals. Where goals are replaced there is no Monte-Carlo return, which would be
    that of the old ones.

    Args:
        source: whose rows are single steps and whose ``BatchSpec.goal`` is not None.
        goals: of the task.
        share: of the rows, on average.
        seed: of the goals' own random generator.

    Raises:
        TrimtabError: if ``share`` is outside [0, 1].
    """

    def __init__(self, source: Drawn, goals: Goals, share: float, seed: int = 0) -> None:
        if not 0.0 <= share <= 1.0:
            raise TrimtabError(f"goals: the share of relabelled rows is {share}; it is from 0 to 1")
        self.source, self.goals, self.share = source, goals, float(share)
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def sample(self, batch_size: int) -> Batch:
        """Return transitions with their goals, ``goal`` ``[B, G]``, some of which are new.

        ``goal_steps`` ``[B]`` says how many steps after the observation a new one was reached.

        Raises:
            TrimtabError: if a row is more than one step, batches have sequences, the source was not
                made for goals, or observations have no parts of that name; as the source's.
        """
        batch, start = self.source.draw(batch_size)
        self._check(batch, start)
        goals, whole = self.goals, start.view.history == 1
        chosen = self._generator.random(len(batch)) < self.share
        later = self._generator.integers(start.rows)
        reached = np.asarray(goals.achieved_in(start.reached(later)))
        before, after = goals.desired_in(batch.obs), goals.achieved_in(batch.next_obs)
        if not whole:  # of a history the newest
            before, after = before[:, -1], after[:, -1]
        rows = torch.from_numpy(chosen).to(before.device)
        goal = torch.where(rows[:, None], torch.from_numpy(reached).to(before.device), before)
        # What is reached after the row's own step lies one step ahead of its observation.
        steps = torch.from_numpy(np.where(chosen, later + 1, 0)).to(before.device)
        batch = dataclasses.replace(
            batch, goal=goal, goal_steps=steps, mc_return=self._mc_return(batch)
        )
        if not chosen.any():
            return batch
        worth = goals.reward(after[rows].cpu().numpy(), goal[rows].cpu().numpy())
        reward = batch.reward.clone()
        reward[rows] = torch.as_tensor(np.asarray(worth, np.float32), device=reward.device)
        return dataclasses.replace(
            batch,
            obs=goals.with_desired(batch.obs, goal, rows),
            next_obs=goals.with_desired(batch.next_obs, goal, rows),
            reward=reward,
        )

    def _mc_return(self, batch: Batch) -> Tensor | None:
        return None if self.share > 0 else batch.mc_return

    def _check(self, batch: Batch, start: Starting) -> None:
        steps = batch.action.shape[1]
        if steps != 1 or start.view.rule.length != 1:
            raise TrimtabError(
                f"goals: they are relabelled for single steps; here a row is {steps} actions and "
                f"{start.view.rule.length} rows: set act_steps=1 and n_step=1"
            )
        if start.view.spans is None:
            raise TrimtabError("goals: the source was made without them; give BatchSpec(goal=...)")
        if batch.sequence is not None and self.share > 0:
            raise TrimtabError("goals: sequences are not relabelled; set goal=0 or sequence=0")
        if isinstance(batch.obs, Mapping):
            missing = {_ACHIEVED, _DESIRED} - set(batch.obs)
            if missing:
                raise TrimtabError(f"goals: observations have no part {sorted(missing)[0]!r}")
        else:
            size = batch.obs.shape[-1]
            entries = self.goals.achieved + self.goals.desired
            if min(entries) < 0 or max(entries) >= size:
                raise TrimtabError(
                    f"goals: entries {self.goals.achieved} and {self.goals.desired} of an "
                    f"observation of {size} numbers"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the goals' generator; the source keeps its own."""
        return {"generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            TrimtabError: if it is damaged.
        """
        try:
            self._generator.bit_generator.state = generator_words(state["generator"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TrimtabError(f"goals: the saved state is damaged ({error})") from error
