"""OGBench's own oracles, by which its data was collected, driven to the goal of a task.

OGBench lets them move one object after the other to random places, in scenes of their own. Here the
places are those of the task (see :mod:`trimtab.datasets.recipes.ogbench_plans`), so that the
episodes are demonstrations of it, with its own rewards and ends. Of OGBench's two kinds these are
the Markovian ones: they look where things are at every step, and so recover from noise. Without any
noise they can stand still for ever, such as at the drawer's handle; a little of it frees them.

Park et al., 2024, "OGBench: Benchmarking Offline Goal-Conditioned RL".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from trimtab.datasets.recipes.ogbench_plans import (
    CubePlan,
    Part,
    Plan,
    PlanFactory,
    PuzzlePlan,
    ScenePlan,
)
from trimtab.errors import TrimtabError

__all__ = ["OgbenchOracle"]


class OgbenchOracle:
    """Solves OGBench's manipulation tasks (cube, puzzle, scene), with noise on its actions.

    What it needs is not all observed, so it watches the environment: see
    :class:`trimtab.datasets.recording.Watcher`.

    Args:
        task: name of the task, such as ``cube-single-singletask-v0``.
        generator: decides the noise, where the arm goes between objects, and where a cube is put
            aside.
        noise: standard deviation of the noise added to each action dimension.
        noise_levels: instead of ``noise``, values of which each episode draws one: a mixture of
            competences.
    """

    name: ClassVar[str] = "ogbench_oracle"
    revision: ClassVar[int] = 1

    def __init__(
        self,
        task: str,
        generator: np.random.Generator,
        *,
        noise: float = 0.0,
        noise_levels: Sequence[float] = (),
    ) -> None:
        self.task, self.generator = task, generator
        self.noise = float(generator.choice(noise_levels)) if noise_levels else noise
        self.scene: Any = None
        self.plan: Plan | None = None
        self.part: Part | None = None

    def watch(self, env: gymnasium.Env[Any, Any]) -> None:
        """Take the environment to look at.

        Raises:
            TrimtabError: if it is none of OGBench's manipulation scenes.
        """
        self.scene = getattr(getattr(env, "raw", env), "scene", None)
        for kind, make_plan in _plans():
            if isinstance(self.scene, kind):
                self.plan, self.part = make_plan(self.scene, self.generator), None
                return
        raise TrimtabError(
            f"OGBench's oracles cannot act in {self.task}: they move cubes, press the buttons of "
            "puzzles and tidy the scene; choose such a task of ogbench/ with dataset.env"
        )

    def act(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Return the oracle's action ``[5]``, noisy."""
        assert self.plan is not None, "watch() comes before act()"
        info = self.scene.compute_ob_info()
        if self.part is None or self.part.oracle.done:
            self.part = self.plan.next_part(info) or self.part
            if self.part is not None:
                before = np.random.get_state()
                np.random.seed(self.generator.integers(2**32))  # the oracles draw from there
                try:
                    self.part.oracle.reset(obs, info)
                finally:
                    np.random.set_state(before)
        action = np.zeros(self.scene.action_space.shape)
        if self.part is not None:
            action = self.part.oracle.select_action(obs, {**info, **self.part.target})
        noisy: NDArray[Any] = action + self.noise * self.generator.standard_normal(action.shape)
        return noisy


def _plans() -> list[tuple[type, PlanFactory]]:
    try:
        from ogbench.manipspace.envs.cube_env import CubeEnv
        from ogbench.manipspace.envs.puzzle_env import PuzzleEnv
        from ogbench.manipspace.envs.scene_env import SceneEnv
    except ImportError as error:
        raise TrimtabError(
            "the oracle recipe needs OGBench: pip install 'trimtab[ogbench]'"
        ) from error
    return [(CubeEnv, CubePlan), (PuzzleEnv, PuzzlePlan), (SceneEnv, ScenePlan)]
