"""Words of a sweep or a search: settings with several values, as Hydra's grammar writes them."""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from hydra.core.override_parser.types import Glob, IntervalSweep, Override, RangeSweep

from trimtab.benchmarks.training.settings.groups import group_options
from trimtab.benchmarks.training.settings.overrides import read_word
from trimtab.errors import TrimtabError

__all__ = ["Swept", "swept_words"]

_SHARED = frozenset({"out"})
"""Settings that all runs of a sweep have in common."""
_ESCAPED = re.compile(r"\$\\\{(.*?)\\\}")
"""``${seed}`` as Hydra escapes it among several values: nobody would fill it in."""


@dataclass(frozen=True)
class Swept:
    """A word of a sweep.

    Attributes:
        text: as it was given; what a run takes if it has one value.
        override: as Hydra reads it.
        names: the group's names that a glob stands for.
    """

    text: str
    override: Override
    names: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What stands before its ``=``."""
        return self.text.partition("=")[0]

    @property
    def several(self) -> bool:
        """Whether it is written as several values."""
        return self.override.is_sweep_override()

    @property
    def value(self) -> Any:
        """Hydra's object for its values, whose annotation leaves out what a sweep has."""
        return cast(Any, self.override.value())

    @property
    def count(self) -> int:
        """How many values it has; they are not enumerated for it.

        Raises:
            TrimtabError: if nobody can enumerate them.
        """
        if not self.several:
            return 1
        if isinstance(self.value, IntervalSweep):
            raise TrimtabError(
                f"{self.text}: an interval has no end of values; name some after commas, or add "
                "hydra/sweeper=optuna"
            )
        if isinstance(self.value, RangeSweep):
            return self._steps()
        return len(self.names) if isinstance(self.value, Glob) else len(self.value.list)

    def _steps(self) -> int:
        start, stop, step = self.value.start, self.value.stop, self.value.step
        if not step or not all(math.isfinite(number) for number in (start, stop, step)):
            raise TrimtabError(
                f"{self.text}: a range has finite numbers, and a step that is not 0; range(1, 4) "
                "is 1, 2 and 3"
            )
        first, end, by = (decimal.Decimal(str(number)) for number in (start, stop, step))
        return max(math.ceil((end - first) / by), 0)

    def check_some(self) -> None:
        """Check that it has a value.

        Raises:
            TrimtabError: saying what would have one.
        """
        if self.count:
            return
        if isinstance(self.value, Glob):
            raise TrimtabError(
                f"{self.text}: no name of {self.key} is like that; trimtab list {self.key} shows "
                "them"
            )
        raise TrimtabError(
            f"{self.text}: a range has no values in it; widen it: range(1, 4) is 1, 2 and 3"
        )

    def values(self) -> list[str]:
        """Return every value, as a word of a run takes it after its ``=``."""
        if isinstance(self.value, Glob):
            return list(self.names)
        found = self.override.sweep_string_iterator()
        return [_ESCAPED.sub(r"${\1}", value) for value in found]

    def words(self) -> list[str]:
        """Return the word with each of its values; itself if it has one."""
        return [f"{self.key}={value}" for value in self.values()] if self.several else [self.text]


def swept_words(words: Sequence[str]) -> list[Swept]:
    """Return the words of a sweep, as they are read; whether they name anything is not checked.

    Raises:
        TrimtabError: if one cannot be read, or gives several values to what all runs share.
    """
    found = []
    for word in words:
        override = read_word(word)
        value = cast(Any, override.value())
        names = group_options(str(override.key_or_group)) if isinstance(value, Glob) else []
        named = value.filter(names) if names else []
        found.append(Swept(word, override, tuple(named)))
    for one in found:
        if one.several and one.override.key_or_group in _SHARED:
            raise TrimtabError(
                f"{one.text}: all runs of a sweep lie in one folder; one whose name has a comma in "
                f"it goes into quotes for the shell and for Hydra: '{one.key}=\"…\"'"
            )
    return found
