"""Data that a generator makes, in the place of a run's dataset (``source=``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.algorithms.generator import Generator
from trimtab.algorithms.phases import Phase
from trimtab.datasets.sources.mixture import Mixture
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.types import Batch

__all__ = ["GeneratedData"]


class GeneratedData:
    """What a generator makes, with a share of the dataset's own batches; meets ``Source``.

    Args:
        generator: has learned nothing yet, or is to be restored.
        learned_from: the batches of the dataset that it learns from.
        own: the batches of the dataset as the run's method wants them.
    """

    def __init__(self, generator: Generator, learned_from: ReplayBuffer, own: ReplayBuffer) -> None:
        self.generator, self.learned_from, self.own = generator, learned_from, own
        generator.begin(learned_from)
        share = generator.real_share
        self.mixed = Mixture([own, generator], [share, 1 - share])

    def sample(self, batch_size: int) -> Batch:
        """Return a batch of both."""
        return self.mixed.sample(batch_size)

    def phase(self) -> Phase:
        """Return the part of a run in which the generator learns; its policy is not judged yet."""
        updates = self.generator.fit_updates
        return Phase(
            "generator",
            updates,
            "updates",
            self.learned_from,
            self.generator.update,
            eval_every=updates + 1,
            batch_size=self.generator.batch_size,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the generator and of what draws of the dataset."""
        return {
            "generator": self.generator.state_dict(),
            "learned_from": self.learned_from.state_dict(),
            "own": self.own.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
        self.generator.load_state_dict(state["generator"])
        self.learned_from.load_state_dict(state["learned_from"])
        self.own.load_state_dict(state["own"])
