"""One sentence whether one method beats another: its numbers, its pairing, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trimtab.benchmarks.board.leaderboard import build
from trimtab.benchmarks.cli.main import run as trimtab
from trimtab.benchmarks.training.rows import write_episodes
from trimtab.errors import TrimtabError

Synthetic = Callable[[Sequence[Any]], pa.Table]


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What compares two words among rows, and returns the numbers."""

    def compare(table: pa.Table, a: str, b: str, *more: str) -> dict[str, Any]:
        write_episodes(tmp_path / "rows.parquet", table)
        words = [f"a={a}", f"b={b}", f"runs={tmp_path / 'rows.parquet'}", "format=json", *more]
        assert trimtab(["compare", *words]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return compare


def test_the_numbers_are_those_of_the_table(
    synthetic: Synthetic, method: Any, told: Callable[..., dict[str, Any]]
) -> None:
    seeds = (0, 1, 2)
    better = replace(method, algorithm="td3", levels=(0.9,), config_hash="a1", seeds=seeds)
    other = replace(method, levels=(0.3,), config_hash="a2", seeds=(*seeds, 3))
    table = synthetic([better, other])
    found = told(table, "td3", "sac")
    (board,) = build(table, baselines="sac").tables
    entry = next(one for one in board.entries if one.label == "td3")
    assert entry.difference is not None and entry.improvement is not None
    assert found["difference"] == pytest.approx(entry.difference._asdict())
    assert found["p_better"] == pytest.approx(entry.improvement._asdict())
    assert (found["verdict"], found["paired_by"]) == ("better", "seeds")
    assert found["seeds"] == [0, 1, 2] and found["error_rate"] == 0.05
    assert found["sentence"].startswith("td3 is better than sac in gym/X-v0: success rate 0.")
    back = told(table, "sac", "td3")
    assert back["verdict"] == "worse"
    assert back["difference"]["value"] == -found["difference"]["value"]
    near = synthetic([better, replace(other, levels=(0.88,))])
    unsure = told(near, "td3", "sac")
    assert unsure["verdict"] == "not told yet" and unsure["seeds_to_tell"] > 3
    assert f"With {unsure['seeds_to_tell']} seeds a side, it would be told" in unsure["sentence"]
    many = tuple(range(40))
    alike = [replace(one, levels=(0.99,), seeds=many) for one in (better, other)]
    same = told(synthetic(alike), "td3", "sac")
    assert (same["verdict"], same["margin"], same["seeds_to_tell"]) == ("no different", 0.05, None)
    assert same["sentence"].startswith("td3 is no different from sac in")


def test_single_runs_are_paired_by_their_episodes(
    synthetic: Synthetic, method: Any, told: Callable[..., dict[str, Any]]
) -> None:
    one = replace(method, scored_by_return=True, levels=(100.0,), seeds=(0,), config_hash="a1")
    two = replace(one, algorithm="td3", config_hash="a2")
    table = synthetic([one, two])
    found = told(table, "sac", "td3")
    assert found["paired_by"] == "episodes" and found["p_better"] is None
    returns = {
        name: np.array([r["return"] for r in table.to_pylist() if r["algorithm"] == name])
        for name in ("sac", "td3")
    }
    gains = returns["sac"] - returns["td3"]
    assert found["difference"]["value"] == pytest.approx(gains.mean())
    half = 2.0096 * gains.std(ddof=1) / np.sqrt(50)  # Student's t, 49 degrees of freedom
    assert found["difference"]["high"] == pytest.approx(gains.mean() + half, rel=1e-3)
    assert "paired by the episodes of one seed, which says nothing" in found["sentence"]


def test_runs_of_two_seeds_are_not_paired(
    synthetic: Synthetic, method: Any, told: Callable[..., dict[str, Any]]
) -> None:
    """Their bases may differ, so that equal starts of episodes do not make them pairs."""
    one = replace(method, scored_by_return=True, levels=(100.0,), seeds=(0,), config_hash="a1")
    two = replace(one, algorithm="td3", seeds=(3,), config_hash="a2")
    table = synthetic([one, two])
    found = told(table, "sac", "td3")
    assert found["paired_by"] is None and found["p_better"] is None and found["seeds"] == []
    sides = [
        np.array([r["return"] for r in table.to_pylist() if r["algorithm"] == name])
        for name in ("sac", "td3")
    ]
    spread = np.sqrt(sum(side.var(ddof=1) / len(side) for side in sides))
    half = found["difference"]["high"] - found["difference"]["value"]
    assert 1.9 * spread < half < 2.1 * spread
    said = "of one seed each (0 and 3), not paired, which says nothing of other seeds"
    assert said in found["sentence"]
    assert found["sentence"].endswith("Run more seeds of both to say something of other seeds.")


def test_one_seed_beside_several_tells_nothing(
    synthetic: Synthetic, method: Any, told: Callable[..., dict[str, Any]]
) -> None:
    one = replace(method, scored_by_return=True, levels=(100.0,), seeds=(0, 1, 2), config_hash="a1")
    two = replace(one, algorithm="td3", levels=(500.0,), seeds=(3,), config_hash="a2")
    found = told(synthetic([one, two]), "td3", "sac")
    assert found["difference"]["low"] > 0.0  # over the episodes of that one seed
    assert (found["verdict"], found["seeds_to_tell"]) == ("not told yet", None)
    assert "of 1 and 3 seeds, not paired" in found["sentence"]
    assert found["sentence"].endswith(
        "One seed of td3 does not say how much its seeds differ: run another one."
    )
    assert found["margin"] == pytest.approx(0.05 * found["a_score"]["value"])  # the larger return


@pytest.mark.parametrize(
    ("changes", "a", "b", "said"),
    [
        (
            {"env": "gym/Y-v0"},
            "sac/gym/X-v0",
            "td3",
            "td3: it has no rows of gym/X-v0; there are gym/Y-v0",
        ),
        ({"env": "gym/Y-v0"}, "sac/gym/X-v0", "td3/gym/Y-v0", "another env: gym/X-v0 and gym/Y-v0"),
        ({}, "sac", "sac/gym/X-v0", "are one configuration of sac"),
        ({}, "sac", "td4", "td4: no method is called so; did you mean td3"),
        ({"algorithm": "sac"}, "sac", "sac", "may mean sac .* or sac"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    changes: dict[str, Any], a: str, b: str, said: str,
    synthetic: Synthetic, method: Any, told: Callable[..., dict[str, Any]],
) -> None:  # fmt: skip
    other = replace(method, **{"algorithm": "td3", "config_hash": "bb", **changes})
    with pytest.raises(TrimtabError, match=said) as error:
        told(synthetic([method, other]), a, b)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "value"),
    [("horizon", 7), ("delay_ms", 3.0), ("protocol_revision", 9), ("success_rule", "last_step")],
)
def test_another_protocol_is_refused(
    column: str, value: Any, synthetic: Synthetic, method: Any, tmp_path: Path
) -> None:
    for name, algorithm in (("a", "sac"), ("b", "td3")):
        table = synthetic([replace(method, algorithm=algorithm, config_hash=name * 2)])
        if name == "b":
            field = table.schema.field(column)
            place = table.column_names.index(column)
            table = table.set_column(place, field, pa.array([value] * len(table), field.type))
        write_episodes(tmp_path / name, table)
    with pytest.raises(TrimtabError, match=f"judged with another {column}: None and {value}"):
        trimtab(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
