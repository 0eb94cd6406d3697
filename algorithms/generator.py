"""The contract of what makes the data that a method learns from, in the place of a dataset's own.

A run with ``source=`` has a generator. It learns from the run's dataset first; then the method's
batches, wherever they would be the dataset's, are what it makes. The method knows nothing of it.
A generator is a setting of the run. As a method around another method, it would have to forward the
phases, settings and ``batch_spec`` of every other method.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from trimtab.settings import CheckedSettings
from trimtab.types import Batch, BatchSpec, Metrics, Source

__all__ = ["Generator"]


class Generator(metaclass=CheckedSettings):
    """Learns from a dataset and makes transitions; meets ``Source``.

    Its constructor takes the run's ``Setup`` and the method that is to learn from it, and ends in
    one line where it cannot serve that method.

    Attributes:
        section: what errors call its settings.
        revision: as that of an ``Algorithm``.
        neutral: as that of an ``Algorithm``.
        faithful: as that of an ``Algorithm``.
        batch_spec: extra fields of the real batches that it learns from.
        batch_size: their rows.
        fit_updates: updates on them before the method learns.
        real_share: share of the method's batches that is still the dataset's.
    """

    section: ClassVar[str] = "source"
    revision: ClassVar[int] = 1
    neutral: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    faithful: ClassVar[bool] = True
    batch_spec: BatchSpec = BatchSpec()
    batch_size: int
    fit_updates: int
    real_share: float

    @abstractmethod
    def begin(self, data: Source) -> None:
        """Look at the data once, before anything is learned, such as for their scale."""

    @abstractmethod
    def update(self, data: Batch) -> Metrics:
        """Learn from one batch of the data; see ``Algorithm.update``."""

    @abstractmethod
    def sample(self, batch_size: int) -> Batch:
        """Return ``batch_size`` transitions that were made."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here (nested, of tensors and numbers)."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where ``state`` was taken."""
