"""A policy that is reached over a socket: judged, and steered to the weights of a local one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from serving import Served, running

import trimtab
from trimtab.benchmarks.artefacts.export import export_black_box, export_bundle
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.base import load_base
from trimtab.benchmarks.training.judging import BundleJudge, task_of
from trimtab.benchmarks.training.rows import read_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import check, train
from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import load_bundle
from trimtab.policies.defaults import torch_defaults
from trimtab.policies.kinds.remote import RemotePolicy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def graph(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base without its weights."""
    out = tmp_path_factory.mktemp("remote") / "bundle"
    export_black_box(lambda folder: export_bundle(tiny.base, folder), out)
    return out


@pytest.fixture(scope="module")
def bundle(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny base with its weights."""
    return trimtab.export(tiny.base, tmp_path_factory.mktemp("whole") / "bundle")


@pytest.fixture(scope="module")
def served(graph: Path) -> Iterator[Served]:
    with running(graph) as found:
        yield found


def words(tiny: Any, base: Any, out: Path, method: str) -> list[str]:
    given = [
        word
        for word in tiny.online(out, method)
        if not word.startswith(("base=", "algorithm.warmup"))
    ]
    return [*given, f"base={base}", "algorithm.warmup_steps=48"]


def evaluate(*given: str) -> int:
    """Carry the command out; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *given])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def played(policy: Any, backend: str, deterministic: bool) -> list[tuple[int, bytes]]:
    """Every chunk of an evaluation, with the number of its episode."""
    bundle = load_base(str(policy))
    found: list[tuple[int, bytes]] = []
    with torch_defaults():
        judge = BundleJudge(bundle, *task_of(bundle, None, None))
        judge.judge(
            episodes=4, seed=3, backend=backend, deterministic=deterministic,
            watch=lambda episode, chunk: found.append((episode, chunk.tobytes())),
        )  # fmt: skip
    return found


@pytest.mark.bits
@pytest.mark.parametrize("backend", ["onnx", "torch"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_it_is_judged_as_the_local_policy(backend: str, deterministic: bool, bundle: Path) -> None:
    local = played(bundle, backend, deterministic)
    with running(bundle, backend=backend) as found:
        far = played(found.address, "torch", deterministic)
    assert local == far
    assert len(set(local)) > 20  # chunks differ, so that equal ones say something


def test_the_command_judges_it_and_writes_rows(
    served: Served, graph: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = []
    for policy, out in ((graph, "a"), (served.address, "b")):
        words = [f"policy={policy}", f"out={tmp_path / out}", "episodes=2", "format=json"]
        assert evaluate(*words) == 0
        found.append(json.loads(capfd.readouterr().out))
    local, far = found
    assert local["episodes"] == far["episodes"] and far["policy"] == served.address
    assert (local["backend"], far["backend"]) == ("torch", "server")
    rows = [read_episodes(tmp_path / out / "episodes.parquet").drop(["seconds"]) for out in "ab"]
    assert rows[0].to_pylist() == rows[1].to_pylist()


def test_wrong_servers_end_the_command_in_one_line(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound:  # an address that is taken, and not listened at
        bound.bind(("127.0.0.1", 0))
        nobody = f"ws://127.0.0.1:{bound.getsockname()[1]}"
        for wrong, said in (
            ([f"policy={nobody}"], "no server can be reached"),
            (["policy=ws://127.0.0.1:port"], "is no address"),
            ([f"policy={served.address}/elsewhere"], "HTTP status 404"),
            ([f"policy={served.address}", "backend=onnx"], "the server says what runs"),
        ):
            assert evaluate(*wrong, "episodes=1") == 2
            (line,) = capfd.readouterr().err.splitlines()
            assert said in line


@pytest.mark.bits
@pytest.mark.parametrize("method", ["dsrl_sac", "dsrl_na"])
def test_it_is_steered_to_the_weights_of_a_local_base(
    method: str, tiny: Any, graph: Path, served: Served, tmp_path: Path
) -> None:
    results = [
        train(compose_run(words(tiny, base, tmp_path / out, method)))
        for base, out in ((graph, "local"), (served.address, "remote"))
    ]
    local, far = (
        safetensors.torch.load_file(one.folder / "policy/model.safetensors") for one in results
    )
    actors = [
        {name: x for name, x in state.items() if name.startswith("actor.")}
        for state in (local, far)
    ]
    assert actors[0] and actors[0].keys() == actors[1].keys()
    assert all(torch.equal(actors[0][name], actors[1][name]) for name in actors[0])
    rows = [
        read_episodes(one.folder / "episodes.parquet").drop(["seconds", "config_hash"]).to_pylist()
        for one in results
    ]
    assert rows[0] == rows[1]
    policy: Any = load_bundle(results[1].folder / "policy").policy
    assert isinstance(policy.base, RemotePolicy) and policy.base.address == served.address


@pytest.mark.bits
def test_a_stopped_run_goes_on_to_the_same_bits(
    tiny: Any, graph: Path, served: Served, tmp_path: Path, copied_at: Callable[[int, Path], Any]
) -> None:
    with copied_at(170, tmp_path / "stopped"):
        whole = train(compose_run(words(tiny, served.address, tmp_path / "whole", "dsrl_sac")))
    torch.manual_seed(5)
    with running(graph) as elsewhere:  # the same policy at another address is the same base
        stopped = words(tiny, elsewhere.address, tmp_path / "stopped", "dsrl_sac")
        again = train(compose_run(stopped))
    assert not again.already_done and again.folder.name == whole.folder.name
    assert again.folder.parent.name == whole.folder.parent.name
    states = [(one.folder / "policy/model.safetensors").read_bytes() for one in (whole, again)]
    assert states[0] == states[1]


def test_a_server_that_ends_during_a_run_ends_it_in_one_line(
    tiny: Any, graph: Path, tmp_path: Path
) -> None:
    with running(graph) as found:
        config = compose_run(words(tiny, found.address, tmp_path, "dsrl_sac"))
        check(config)
    with pytest.raises(TrimtabError, match="no server can be reached") as error:
        train(config)
    assert "\n" not in str(error.value)
