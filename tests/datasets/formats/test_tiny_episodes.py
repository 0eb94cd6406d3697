"""What is written of many tiny episodes grows with their numbers, and not with their count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from trimtab.datasets.formats.registry import get_format

COUNT = 450


def write(name: str, dataset: Any, path: Path) -> None:
    save = get_format(name).save
    assert save is not None
    save(dataset, path)
    assert get_format(name).load(path).content_hash == dataset.content_hash


def test_lerobots_episodes_share_groups_of_rows(make_dataset: Any, tmp_path: Path) -> None:
    dataset = make_dataset([1, 2, 1] * (COUNT // 3))
    write("lerobot", dataset, tmp_path / "x")
    frames = pq.ParquetFile(tmp_path / "x/data/chunk-000/file-000.parquet")
    assert frames.metadata.num_row_groups == -(-COUNT // 100)
    episodes = pq.read_table(tmp_path / "x/meta/episodes/chunk-000/file-000.parquet")
    for index in (0, 1, COUNT - 1):  # the statistics are those of the episode alone
        row = {name: episodes[name][index].as_py() for name in episodes.column_names}
        actions = dataset.episodes[index].actions.astype(np.float64)
        np.testing.assert_allclose(row["stats/action/std"], actions.std(0))
        np.testing.assert_allclose(row["stats/action/q90"], np.quantile(actions, 0.9, axis=0))
        assert row["stats/action/count"] == [len(actions)]
        assert row["stats/episode_index/max"] == [index]
    write("lerobot", make_dataset([40_000] * 3), tmp_path / "y")
    frames = pq.ParquetFile(tmp_path / "y/data/chunk-000/file-000.parquet")
    assert frames.metadata.num_row_groups == 3
