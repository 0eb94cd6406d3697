"""Scripted hands that reach, push, and pick and place: experts for Fetch and for robosuite.

Each reads where hand, object and goal stand in the observation, so that one controller serves every
simulator whose first action entries move the hand: a displacement in ``[-1, 1]^3``, then whatever
else there is (zero here), and the gripper last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.settings import NonNegative

__all__ = ["PickAndPlace", "Push", "Reach"]

Vector = NDArray[np.float64]


class _Hand:
    """What the three have in common: where the hand is, and noisy movements toward a point.

    Args:
        task: not used.
        generator: decides the noise.
        hand: entries of the observation that are the hand's position (m): [first, one after last].
        action_length: length A of an action.
        gain: action for each metre that is left.
        noise: standard deviation of the noise on the hand's movement.
        noise_levels: instead of ``noise``, values of which each episode draws one: a mixture of
            competences.

    Raises:
        TrimtabError: if entries are not those of a position.
    """

    gripper = 0.0  # its action at present

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        hand: Sequence[int],
        action_length: int = 4,
        gain: float = 8.0,
        noise: NonNegative = 0.0,
        noise_levels: Sequence[NonNegative] = (),
    ) -> None:
        self.generator = generator
        self.hand, self.action_length, self.gain = _entries("hand", hand), action_length, gain
        self.noise = float(generator.choice(noise_levels)) if noise_levels else noise

    def toward(self, obs: NDArray[Any], target: Vector) -> NDArray[Any]:
        """Return the action that moves the hand to ``target`` (m) with the gripper as it is."""
        action = np.zeros(self.action_length)
        action[:3] = np.clip(self.gain * (target - obs[self.hand]), -1, 1)
        action[:3] += self.noise * self.generator.standard_normal(3)
        action[-1] = self.gripper
        return action


def _entries(name: str, limits: Sequence[int]) -> slice:
    if len(limits) != 2 or limits[1] - limits[0] != 3:
        raise TrimtabError(
            f"dataset.controller.{name}={list(limits)}: must be the first entry of a position in "
            "the observation and the one after its last, such as [0, 3]"
        )
    return slice(*limits)


class Reach(_Hand):
    """Moves the hand straight to the goal.

    Args:
        task: not used.
        generator: decides the noise.
        goal: entries of the observation that are the goal (m), as ``hand``.
        of_hand: ``hand``, ``action_length``, ``gain``, ``noise`` and ``noise_levels``, see
            :class:`_Hand`.

    Raises:
        TrimtabError: if entries are not those of a position.
    """

    name: ClassVar[str] = "reach"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        goal: Sequence[int],
        **of_hand: Any,
    ) -> None:
        super().__init__(task, generator, **of_hand)
        self.goal = _entries("goal", goal)

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the action ``[A]``."""
        return self.toward(obs, np.asarray(obs[self.goal], float))


class Push(_Hand):
    """Goes round behind the object, comes down, and pushes it to the goal along the table.

    Args:
        task: not used.
        generator: decides the noise.
        object: entries of the observation that are the object's position (m), as ``hand``.
        goal: those of the goal.
        behind: distance (m) behind the object where the hand comes down.
        above: height (m) over the object at which the hand travels.
        of_hand: ``hand``, ``action_length``, ``gain``, ``noise`` and ``noise_levels``, see
            :class:`_Hand`.

    Raises:
        TrimtabError: if entries are not those of a position.
    """

    name: ClassVar[str] = "push"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        object: Sequence[int],
        goal: Sequence[int],
        behind: float = 0.09,
        above: float = 0.1,
        **of_hand: Any,
    ) -> None:
        super().__init__(task, generator, **of_hand)
        self.object, self.goal = _entries("object", object), _entries("goal", goal)
        self.behind, self.above = behind, above
        self.down = False
        self.gripper = -1.0  # closed

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the action ``[A]``."""
        hand, thing = np.asarray(obs[self.hand], float), np.asarray(obs[self.object], float)
        way = np.asarray(obs[self.goal], float) - thing
        way[2] = 0.0
        left = float(np.linalg.norm(way))
        if left < 0.02:
            return self.toward(obs, hand)  # it lies there: let it lie
        way /= left
        start = thing - self.behind * way
        offset = hand - thing
        along, aside = float(offset @ way), float(np.linalg.norm(np.cross(way, offset)[2:]))
        if self.down and (along > 0.0 or aside > 0.04):
            self.down = False  # the object slid away: go round again
        if not self.down:
            if np.linalg.norm((hand - start)[:2]) > 0.025:
                return self.toward(obs, start + [0.0, 0.0, self.above])
            if hand[2] - start[2] > 0.015:
                return self.toward(obs, start)
            self.down = True
        # A hand that presses on slides past the goal: the last centimetres are taken slowly.
        return self.toward(obs, hand + way * min(left + 0.01, 0.06))


class PickAndPlace(_Hand):
    """Opens, comes down over the object, closes, and carries it to the goal.

    Args:
        task: not used.
        generator: decides the noise.
        object: entries of the observation that are the object's position (m), as ``hand``.
        goal: those of the goal, or None where it is ``place``.
        place: the goal (m) where the observation does not hold it; a None among its three means
            where the object was at first.
        lift: added to a coordinate of ``place`` that was the object's (m).
        open: the gripper's action that opens it.
        close: the one that closes it.
        grasp_steps: steps for which the closing gripper stands still.
        clearance: height (m) over its start that the object has before it is carried sideways.
        release: whether to open over the goal; otherwise the object is held there.
        above: height (m) over the object at which the hand comes to it.
        of_hand: ``hand``, ``action_length``, ``gain``, ``noise`` and ``noise_levels``, see
            :class:`_Hand`.

    Raises:
        TrimtabError: if entries are not those of a position, or there is no goal or two.
    """

    name: ClassVar[str] = "pick_and_place"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        object: Sequence[int],
        goal: Sequence[int] | None = None,
        place: Sequence[float | None] | None = None,
        lift: float = 0.0,
        open: float = 1.0,
        close: float = -1.0,
        grasp_steps: int = 5,
        clearance: float = 0.0,
        release: bool = False,
        above: float = 0.08,
        **of_hand: Any,
    ) -> None:
        super().__init__(task, generator, **of_hand)
        if (goal is None) == (place is None):
            raise TrimtabError("dataset.controller: give either goal or place")
        self.object = _entries("object", object)
        self.goal = None if goal is None else _entries("goal", goal)
        self.place, self.lift = place, lift
        self.open, self.close, self.grasp_steps = open, close, grasp_steps
        self.clearance, self.release, self.above = clearance, release, above
        self.gripper, self.held = open, 0
        self.first: Vector | None = None

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the action ``[A]``."""
        hand, thing = np.asarray(obs[self.hand], float), np.asarray(obs[self.object], float)
        if self.first is None:
            self.first = thing.copy()
        offset = thing - hand
        if self.held and np.linalg.norm(offset) > 0.06 and self.gripper == self.close:
            self.held, self.gripper = 0, self.open  # it was lost: take it again
        if not self.held:
            self.gripper = self.open
            if np.linalg.norm(offset[:2]) > 0.015:
                return self.toward(obs, thing + [0.0, 0.0, self.above])
            if abs(offset[2]) > 0.01:
                return self.toward(obs, thing)
        self.gripper = self.close
        self.held += 1
        if self.held <= self.grasp_steps:
            return self.toward(obs, hand)
        target = self._target(obs)
        sideways = np.linalg.norm((target - thing)[:2])
        if self.clearance and sideways > 0.03:
            over = self.first[2] + self.clearance
            if thing[2] < over - 0.02:  # up first
                return self.toward(obs, hand + [0.0, 0.0, over - thing[2]])
            target = np.array([*target[:2], over])
        elif self.release and sideways <= 0.03 and thing[2] - target[2] < 0.05:
            self.gripper = self.open
            return self.toward(obs, hand)
        return self.toward(obs, hand + target - thing)

    def _target(self, obs: NDArray[Any]) -> Vector:
        if self.goal is not None:
            return np.asarray(obs[self.goal], float)
        assert self.place is not None and self.first is not None
        return np.array(
            [
                first + self.lift if wanted is None else wanted
                for wanted, first in zip(self.place, self.first, strict=True)
            ]
        )
