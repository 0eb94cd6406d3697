"""Metrics stay tensors until they are logged, and one that is no finite number is told of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.benchmarks.training.metrics_log import MetricsLog, NotFinite
from trimtab.types import TrimtabError


def updates(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    losses = torch.randn(count, generator=generator)
    return [{"loss": loss, "rate": 1.0 / (1 + k)} for k, loss in enumerate(losses.unbind())]


def test_a_line_has_the_means_since_the_last_one(tmp_path: Path) -> None:
    log, made = MetricsLog(tmp_path / "log.jsonl"), updates(7)
    for metrics in made[:5]:
        log.add(metrics)
    log.write({"updates": 5})
    for metrics in made[5:]:
        log.add(metrics)
    log.write({"updates": 7}, {"seconds": 1.0})
    first, second = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert first["loss"] == sum(float(m["loss"]) for m in made[:5]) / 5
    assert second["rate"] == (1 / 6 + 1 / 7) / 2 and second["seconds"] == 1.0


def test_when_it_is_looked_at_changes_no_bit(tmp_path: Path) -> None:
    lines = []
    for looks in ((), (1, 2, 6), range(9)):
        log = MetricsLog(tmp_path / f"{len(lines)}.jsonl")
        for number, metrics in enumerate(updates(9)):
            log.add(metrics)
            if number in looks:
                state = log.state_dict()
                log = MetricsLog(tmp_path / f"{len(lines)}.jsonl")
                log.load_state_dict(state)
        log.write({})
        lines.append(log.path.read_text())
    assert len(set(lines)) == 1


@pytest.mark.parametrize("value", [None, "loss", torch.ones(3), [("loss", 1.0)], 0.5])
def test_an_update_that_returns_no_names_is_refused(value: Any, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    with pytest.raises(TrimtabError, match="it has to return named scalars") as error:
        log.add(value)
    assert len(str(error.value)) < 200


def test_a_name_that_is_gone_is_told(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    log.add({"loss": 1.0, "rate": 2.0})
    with pytest.raises(TrimtabError, match="an update returned no rate, and one before did"):
        log.add({"loss": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor(math.nan)])
def test_a_value_that_is_not_finite_is_told_with_its_update(value: Any, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    for number in range(6):
        late = math.nan if number == 4 else 0.0  # stands before it, and comes after it
        log.add({"late": late, "loss": torch.tensor(1.0) if number != 3 else value})
    with pytest.raises(NotFinite, match="loss is (nan|inf)") as error:
        log.settle()
    assert error.value.ago == 2


@pytest.mark.parametrize("returned", [None, "good", 3.0, [1.0]])
def test_what_is_no_mapping_is_one_line(returned: Any, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="it has to return named scalars"):
        MetricsLog(tmp_path / "log.jsonl").add(returned)


@pytest.mark.parametrize("value", ["high", None, torch.ones(2)])
def test_what_is_no_scalar_is_one_line(value: Any, tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log.jsonl")
    log.add({"loss": value})
    with pytest.raises(TrimtabError, match="the metric loss of an update is no scalar"):
        log.settle()
