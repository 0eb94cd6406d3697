"""A base of which only the graph is known: who can start from it, and who says that it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.benchmarks.artefacts.export import export_black_box, export_bundle
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.policies.bundle.bundle import bundle_hash, check_bundle, load_bundle
from trimtab.policies.kinds.black_box import BlackBoxPolicy
from trimtab.types import TrimtabError

TUNES = '''
"""Behaviour cloning that goes on from its start, for a test.

Nobody, "No such paper" (arXiv 0000.00000).
"""

from typing import Any

from trimtab.algorithms.base import Needs, Setup
from trimtab.algorithms.steering.frozen import Frozen


class Tunes(Frozen):
    """A method that tunes weights.

    Args:
        setup: needs a start.
    """

    needs = Needs({"start"})
'''


@pytest.fixture(scope="module")
def graph(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base without its weights."""
    out = tmp_path_factory.mktemp("black_box") / "bundle"
    errors = export_black_box(lambda folder: export_bundle(tiny.base, folder), out)
    assert set(errors) == {"onnx"} and max(errors.values()) < 1e-5
    return out


def words(tiny: Any, base: Path, out: Path, method: str) -> list[str]:
    given = [
        word
        for word in tiny.online(out, method)
        if not word.startswith(("base=", "algorithm.rollout", "algorithm.warmup"))
    ]
    more = {"noise_ppo": ["algorithm.rollout_steps=9"]}
    return [*given, f"base={base}", *more.get(method, ["algorithm.warmup_steps=48"])]


def returns(folder: Path) -> list[float]:
    return [float(row["return"]) for row in read_episodes(folder / "episodes.parquet").to_pylist()]


@pytest.mark.parametrize("method", ["frozen", "zero_noise", "repeated_noise"])
def test_the_graph_acts_as_the_policy_that_it_was_made_of(
    method: str, tiny: Any, graph: Path, tmp_path: Path
) -> None:
    found = [
        returns(train(compose_run([*tiny.task(out), f"algorithm={method}", f"base={base}"])).folder)
        for base, out in ((tiny.base, tmp_path / "a"), (graph, tmp_path / "b"))
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-3)


@pytest.mark.bits
@pytest.mark.parametrize("method", ["dsrl_sac", "dsrl_na", "noise_ppo"])
def test_it_is_steered_and_a_stopped_run_goes_on_to_the_same_bits(
    method: str, tiny: Any, graph: Path, tmp_path: Path, copied_at: Callable[[int, Path], Any]
) -> None:
    with copied_at(170, tmp_path / "stopped"):
        whole = train(compose_run(words(tiny, graph, tmp_path / "whole", method)))
    torch.manual_seed(5)
    again = train(compose_run(words(tiny, graph, tmp_path / "stopped", method)))
    assert not again.already_done
    assert returns(again.folder) == returns(whole.folder)
    assert bundle_hash(again.folder / "policy") == bundle_hash(whole.folder / "policy")
    policy: Any = load_bundle(whole.folder / "policy").policy
    assert isinstance(policy.base, BlackBoxPolicy)
    shift = policy.actor.normalizer.obs_shift
    assert torch.equal(shift, load_bundle(graph).policy.normalizer.obs_shift) and shift.any()


def test_it_is_searched_and_what_is_found_exports_as_one_graph(
    tiny: Any, graph: Path, tmp_path: Path
) -> None:
    result = train(
        compose_run(
            [
                *tiny.task(tmp_path / "runs"), "algorithm=golden_ticket", f"base={graph}",
                "algorithm.tickets=3", "algorithm.episodes=2", "online_steps=500",
            ]
        )
    )  # fmt: skip
    export_bundle(result.folder, tmp_path / "bundle")
    assert max(check_bundle(tmp_path / "bundle").values()) < 1e-5


def test_a_method_that_tunes_weights_says_that_there_are_none(
    tiny: Any, graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tunes.py").write_text(TUNES)
    monkeypatch.syspath_prepend(tmp_path)
    given = [*tiny.task(tmp_path / "runs"), "algorithm=frozen", "algorithm._target_=tunes.Tunes"]
    check(compose_run([*given, f"base={tiny.base}"]))
    with pytest.raises(TrimtabError, match="has no weights, and frozen tunes those") as error:
        check(compose_run([*given, f"base={graph}"]))
    assert "\n" not in str(error.value)
