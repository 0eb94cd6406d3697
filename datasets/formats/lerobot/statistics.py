"""What a LeRobot folder says of its numbers: least, greatest, mean, deviation, count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.datasets.formats.findings import Finding
from trimtab.errors import TrimtabError
from trimtab.files import read_json

__all__ = ["read_statistics", "statistics_findings"]

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6  # writers compute and round them in several ways
_ADVICE = "make the dataset again or fetch a fresh copy"


def read_statistics(path: Path, info: Mapping[str, Any], widths: Mapping[str, int]) -> Any:
    """Return ``meta/stats.json``, an empty object where there is none.

    Raises:
        TrimtabError: if a statistic has not as many numbers as its feature.
    """
    place = path / "meta" / "stats.json"
    statistics = read_json(place, "dataset") if place.exists() else {}
    _check_statistics(statistics, info, widths, f"dataset {place}")
    return statistics


def _check_statistics(
    statistics: Any, info: Mapping[str, Any], widths: Mapping[str, int], where: str
) -> None:
    """Check the shapes of statistics; of a matrix, LeRobot has those of its last axis."""
    for name, width in widths.items():
        of_one = statistics.get(name, {}) if isinstance(statistics, dict) else None
        if not isinstance(of_one, dict):
            raise TrimtabError(f"{where}, key '{name}': not statistics by name; {_ADVICE}")
        last = int([1, *info["features"][name]["shape"]][-1])  # a single number may have no shape
        for key in {"min", "max", "mean", "std", "count"} & of_one.keys():
            try:
                size = np.asarray(of_one[key], np.float64).size
            except (TypeError, ValueError):
                size = 0
            if size not in (width, last, *[1] * (key == "count")):
                raise TrimtabError(
                    f"{where}, key '{name}': '{key}' has {size} numbers, the feature has {width}; "
                    f"{_ADVICE}"
                )


def statistics_findings(
    statistics: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> Iterator[Finding]:
    """Yield the features whose least or greatest numbers, or count, are not those of the frames."""
    for name, array in arrays.items():
        found = {"min": array.min(0), "max": array.max(0), "count": len(array)}
        for key, of_frames in found.items():
            value = np.ravel(of_frames).astype(np.float64)
            stated = np.ravel(statistics.get(name, {}).get(key, value)).astype(np.float64)
            if stated.size != value.size:  # of the last axis of a matrix
                continue
            near = np.isclose(stated, value, _RELATIVE, _ABSOLUTE, equal_nan=True)
            if not near.all():
                place = int(np.argmin(near))
                yield Finding(
                    "warning", "statistics", f"stats.json, key '{name}'",
                    f"'{key}' is {stated[place]:.6g}, the frames say {value[place]:.6g}: perhaps "
                    "of other data; Trimtab does not use it, but compute it again",
                )  # fmt: skip
                break
