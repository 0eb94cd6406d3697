"""Datasets larger than memory: their arrays lie on disk, and only an index is in memory.

A dataset is converted once, an episode at a time, into flat mapped columns (``columns.py``) and
from then on sampled from there. Batches are those of a dataset in memory, bit for bit.
HDF5 itself is slow for single random rows, because each row costs a whole chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from trimtab.datasets.episodes import (
    ContentHash,
    Dataset,
    Episode,
    EpisodesOnAccess,
    check_episode,
    check_limits,
)
from trimtab.datasets.formats.contents import (
    Contents,
    action_limits,
    chosen,
    tell_findings,
    with_losses,
)
from trimtab.datasets.formats.hints import Hints
from trimtab.datasets.formats.registry import recognise
from trimtab.datasets.io.sandbox import spill_to
from trimtab.datasets.precision import Rounding
from trimtab.datasets.sources.columns import open_columns, sha256_with_progress, write_columns
from trimtab.datasets.sources.steps import step_flags, step_returns
from trimtab.errors import TrimtabError
from trimtab.files import sha256_json

__all__ = [
    "FLAGS", "StoredEpisodes", "StreamedDataset", "UnevenInfosError", "load", "stored_files",
    "with_env",
]  # fmt: skip

FLAGS = "flags"
"""Name of the column that holds how each step ends, as a buffer stores it."""

Progress = Callable[[float], None]

_CORE = ("observations", "actions", "rewards", "terminations", "truncations")
_READERS = 2  # raised when a reader makes something else of a file, or refuses it
_EVERY = 50  # episodes between two reports of progress
_ADVICE = "make the dataset again or fetch a fresh copy"


class UnevenInfosError(TrimtabError):
    """The infos of a dataset's episodes are not all alike: columns cannot hold them."""


class StoredEpisodes(EpisodesOnAccess):
    """Episodes that are read from mapped columns when they are asked for.

    Attributes:
        columns: arrays of all episodes one after another, by their names in an episode.
        first: ``[E]`` number of each episode's first step.
        lengths: ``[E]`` steps of each episode.
        last_observed: ``[E]`` whether each episode's last observation was recorded.

    Args:
        columns: see above.
        lengths: see above.
        seeds: seed of each episode's reset, or None where unknown.
        last_observed: see above.
    """

    def __init__(
        self,
        columns: Mapping[str, npt.NDArray[Any]],
        lengths: Sequence[int],
        seeds: Sequence[int | None],
        last_observed: Sequence[bool],
    ) -> None:
        self.columns = columns
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.first = np.cumsum(self.lengths) - self.lengths
        self.last_observed = np.asarray(last_observed, dtype=np.bool_)
        self._seeds = seeds
        prefix = "infos/"
        self._infos = {k[len(prefix) :]: v for k, v in columns.items() if k.startswith(prefix)}

    def __len__(self) -> int:
        return len(self.lengths)

    def episode(self, number: int) -> Episode:
        """Return an episode as views of the columns."""
        first = int(self.first[number])
        last = first + int(self.lengths[number])
        # Every episode has one observation more than it has steps.
        arrays = {name: self.columns[name][first:last] for name in _CORE[1:]}
        return Episode(
            observations=self.columns["observations"][first + number : last + number + 1],
            **arrays,
            infos={key: column[first:last] for key, column in self._infos.items()},
            seed=self._seeds[number],
            last_observed=bool(self.last_observed[number]),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class StreamedDataset(Dataset):
    """A dataset whose episodes are read from ``folder``.

    Attributes:
        folder: of its columns.
        stored: its episodes.
        stored_hash: its content hash, computed when it was converted.
    """

    folder: Path
    stored: StoredEpisodes
    stored_hash: str

    @property
    def num_steps(self) -> int:
        """Number of transitions."""
        return int(self.stored.lengths.sum())

    @property
    def content_hash(self) -> str:
        """SHA-256 over names, seeds and arrays, that of the same dataset in memory."""
        return self.stored_hash

    def returns(self, discount: float, rows: int, progress: Progress) -> npt.NDArray[np.float32]:
        """Return the mapped Monte-Carlo return ``[T]`` of all steps, computed where it is not.

        Args:
            discount: see ``steps.step_returns``.
            rows: see ``steps.step_returns``.
            progress: called with the share that is done.

        Raises:
            TrimtabError: if the disk refuses.
        """
        identity = sha256_json([self.stored_hash, discount, rows])[:10]
        place = self.folder.with_name(f"{self.folder.name}-returns-{identity}")
        found = open_columns(place)
        if found is None:
            with write_columns(place) as writer:
                for index, episode in enumerate(self.stored):
                    writer.append({"mc_return": step_returns(episode, discount, rows)})
                    if index % _EVERY == 0:
                        progress(index / len(self.stored))
            found = open_columns(place)
        if found is None:
            raise TrimtabError(f"{place} cannot be read back; check the disk")
        return found[0]["mc_return"]


def load(
    path: str | Path,
    cache: str | Path,
    progress: Progress = lambda share: None,
    **hints: Unpack[Hints],
) -> StreamedDataset:
    """Return the dataset in ``path``, checked as its format's ``load`` does, with arrays on disk.

    The columns are kept below ``cache`` under the SHA-256 of the dataset's files, and made anew
    where they are missing or damaged. Only one process at a time may do this in one ``cache``.

    Args:
        path: of a dataset in a format that can be read an episode at a time.
        cache: where columns are kept; about as large as the dataset. While they are written, what
            a separate process has read of a foreign file needs as much again.
        progress: called with the share that is done.
        hints: as the format's ``load`` takes them.

    Raises:
        TrimtabError: as the format's ``load``; if it cannot be read an episode at a time, the
            episodes' infos are not all alike, or the disk refuses.
    """
    path, cache = Path(path), Path(cache)
    format = recognise(path)
    if format.open is None:
        raise TrimtabError(
            f"dataset {path}: {format.name} data is read whole; convert it to minari first, or "
            "raise stream_above"
        )
    digests = _digests(path, lambda share: progress(0.1 * share))
    place = cache / sha256_json([_READERS, format.name, path.name, digests, hints])[:16]
    found = open_columns(place, lambda share: progress(0.1 + 0.9 * share))
    if found is None:
        with spill_to(cache):
            contents = format.open(path, **hints)
        _convert(contents, hints, place, lambda share: progress(0.1 + 0.8 * share))
        found = open_columns(place, lambda share: progress(0.9 + 0.1 * share))
    if found is None:
        raise TrimtabError(f"{place} cannot be read back; check the disk")
    columns, about = found
    episodes = StoredEpisodes(columns, about["lengths"], about["seeds"], about["last_observed"])
    low, high = about["limits"]
    tell_findings(about["fields"]["recipe"], f"dataset {path}")
    return StreamedDataset(
        **about["fields"],
        action_low=tuple(-np.inf if x is None else x for x in low),
        action_high=tuple(np.inf if x is None else x for x in high),
        episodes=episodes,
        stored=episodes,
        stored_hash=about["content_hash"],
        folder=place,
    )


def with_env(dataset: Dataset, env: str) -> Dataset:
    """Return a dataset as one of another environment."""
    if not isinstance(dataset, StreamedDataset):
        return dataclasses.replace(dataset, env=env)
    digest = ContentHash(
        dataset.id, env, dataset.env_options, dataset.action_low, dataset.action_high
    )
    for episode in dataset.episodes:
        digest.add(episode)
    return dataclasses.replace(dataset, env=env, stored_hash=digest.hexdigest())


def stored_files(path: Path) -> list[Path]:
    """Return the files of the dataset in ``path``, sorted; videos are not streamed."""
    if path.is_file():
        return [path]
    inside = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in inside if file.relative_to(path).parts[0] != "videos")


def _digests(path: Path, progress: Progress) -> dict[str, str]:
    """Return the SHA-256 of each file of the dataset in ``path``."""
    found: dict[str, str] = {}
    try:
        files = stored_files(path)

        def tell(share: float) -> None:
            progress((len(found) + share) / len(files))

        for file in files:
            found[file.relative_to(path).as_posix()] = sha256_with_progress(file, tell)
    except OSError as error:
        raise TrimtabError(f"dataset {path}: not readable ({error})") from error
    return found


def _convert(contents: Contents, hints: Hints, place: Path, progress: Progress) -> None:
    """Check the episodes and write them as columns, one in memory at a time."""
    where, episodes = f"dataset {contents.path}", contents.episodes
    if not episodes:
        raise TrimtabError(f"{where}: it has no whole episode; {_ADVICE}")
    fields = dict(contents.fields)
    numbers, fields["recipe"] = chosen(fields["recipe"], len(episodes), hints, where)
    low, high = contents.limits or action_limits(episodes)
    named: dict[str, Any] = {key: hints[key] for key in ("id", "env") if key in hints}
    check = contents.check
    if check is not None and (numbers is not None or named):
        digest = _digest(fields, low, high)
        for episode in episodes:
            digest.add(episode)
        check(sum(len(episode) for episode in episodes), digest.hexdigest())
        check = None
    fields |= named
    digest = _digest(fields, low, high)
    lengths: list[int] = []
    seeds: list[int | None] = []
    last_observed: list[bool] = []
    roundings: list[Mapping[str, Rounding]] = []
    dims: tuple[int, int] | None = None
    with write_columns(place) as writer:
        wanted = episodes if numbers is None else (episodes[number] for number in numbers)
        for index, episode in enumerate(wanted):
            dims = check_episode(episode, f"{where}: episode {index}, key", dims)
            if index == 0:
                check_limits(low, high, dims[1], where)
            digest.add(episode)
            try:
                writer.append({**episode.arrays(), FLAGS: step_flags(episode)})
            except TrimtabError as error:
                raise UnevenInfosError(
                    f"{where}: episode {index}: {error}; episodes can only be streamed if their "
                    "infos are alike: leave those infos out, or raise stream_above"
                ) from error
            lengths.append(len(episode))
            seeds.append(episode.seed)
            last_observed.append(episode.last_observed)
            roundings.append(episode.roundings)
            if index % _EVERY == 0:
                progress(index / len(episodes))
        if check is not None:
            check(sum(lengths), digest.hexdigest())
        fields["recipe"] = with_losses(fields["recipe"], roundings)
        writer.about = {
            "fields": fields,
            "limits": [[x if np.isfinite(x) else None for x in side] for side in (low, high)],
            "lengths": lengths,
            "seeds": seeds,
            "last_observed": last_observed,
            "content_hash": digest.hexdigest(),
        }


def _digest(fields: Mapping[str, Any], low: Sequence[float], high: Sequence[float]) -> ContentHash:
    return ContentHash(fields["id"], fields["env"], fields["env_options"], low, high)
