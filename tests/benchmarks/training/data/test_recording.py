"""What a recipe's recording decides before it begins, and what is left where it is told to end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.training.data import recording
from trimtab.benchmarks.training.data.recording import _is_small, record_block
from trimtab.benchmarks.training.settings.groups import load_group
from trimtab.datasets.catalog import is_dataset
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.recording import Wanted


@pytest.mark.parametrize(
    ("wanted", "small"),
    [
        (Wanted(16, None, False), True),
        (Wanted(17, None, False), False),
        (Wanted(8, None, True), True),
        (Wanted(9, None, True), False),  # nobody knows how many episodes come before nine successes
        (Wanted(None, 1000, False), True),
        (Wanted(None, 1001, False), False),
    ],
)
def test_a_few_episodes_are_recorded_without_further_processes(wanted: Wanted, small: bool) -> None:
    assert _is_small(wanted) == small


def test_a_worker_that_is_told_to_end_writes_its_block_whole_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bool] = []
    save = recording.save_minari

    def told_while_it_writes(*words: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        save(*words)

    monkeypatch.setattr(recording, "BLOCK", 2)
    monkeypatch.setattr(recording, "save_minari", told_while_it_writes)
    recipe = json.dumps(load_group("dataset", "two_routes"), sort_keys=True)
    before = signal.signal(signal.SIGTERM, lambda *_: written.append(is_dataset(tmp_path / "0")))
    try:
        record_block(recipe, 0, str(tmp_path / "0"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert written == [True]  # the signal came to who listens, once the block was there
    assert len(load_minari(tmp_path / "0").episodes) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
