"""How speed is measured, on faked clocks; and that every row runs. No real time is tested here."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.benchmarks.cli.commands.speed import speed as speed_command
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.speed import measure as speed
from trimtab.benchmarks.speed import report as speed_report
from trimtab.benchmarks.speed.cases import latency, mjx, training
from trimtab.benchmarks.speed.measure import Pair, Row, Side, Stage, Work

WITHOUT_PEERS = {"improvement", "offline"}
"""Groups of rows that no library beside the lock has; d3rlpy has an environment of its own."""
COLUMNS = (
    "name", "group", "unit", "ours", "peer", "peer_name", "ratio_median", "ratio_min", "ratio_max",
    "rounds", "ours_threads", "peer_threads",
)  # fmt: skip


class FakeTime:
    """A clock that only work moves on, and a book of who worked and with how many threads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.worked: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def side(self, name: str, *seconds: float, count: float = 10.0) -> Side:
        """A side whose turns take ``seconds``, the first of which warms up."""
        left = list(seconds)

        def set_up(stage: Stage) -> Work:
            def work() -> float:
                self.worked.append((name, torch.get_num_threads()))
                self.now += left.pop(0)
                return count

            return work

        return set_up


def missing(stage: Stage) -> Work:
    import a_library_that_nobody_has  # type: ignore[import-not-found]

    return a_library_that_nobody_has  # type: ignore[no-any-return]


def broken(stage: Stage) -> Work:
    raise RuntimeError("no such\ndevice")


def nothing(stage: Stage) -> Work:
    return lambda: 1.0


def on(clock: speed.Clock) -> speed.Begin:
    """What sets a side up in this process, by a clock."""
    return functools.partial(speed.begin_here, clock=clock)


def pair(ours: Side, peer: Side | None = None, **keywords: Any) -> Pair:
    return Pair("row", "updates", "updates/s", ours, peer, "Peer" if peer else None, **keywords)


def test_rates_and_ratios_are_those_of_the_turns() -> None:
    time = FakeTime()
    # The first turns only warm up: a hundred seconds there are in no number.
    ours = time.side("ours", 100, 1.0, 2.0, 5.0)
    peer = time.side("peer", 100, 4.0, 2.0, 50.0)
    row = speed.measure(pair(ours, peer), rounds=3, begin=on(time.clock))
    assert (row.ours, row.peer) == (5.0, 2.5)
    assert (row.ratio_median, row.ratio_min, row.ratio_max) == (4.0, 1.0, 10.0)
    assert (row.peer_name, row.rounds) == ("Peer", 3)
    assert tuple(row.to_json()) == COLUMNS


def test_sides_take_turns_after_the_warm_up() -> None:
    time = FakeTime()
    sides = time.side("A", *[1.0] * 4), time.side("B", *[1.0] * 4)
    speed.measure(pair(*sides), rounds=3, begin=on(time.clock))
    warm_up, turns = time.worked[:2], time.worked[2:]
    assert {name for name, _ in warm_up} == {"A", "B"}
    assert [name for name, _ in turns] == ["A", "B"] * 3


def test_each_side_is_measured_with_one_thread_and_all_and_its_faster_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "cores", lambda: 2)
    before = torch.get_num_threads()
    time = FakeTime()
    mine = iter([time.side("1", 9.0, 1.0, 1.0), time.side("2", 9.0, 2.0, 2.0)])
    theirs = iter([time.side("3", 9.0, 5.0, 5.0), time.side("4", 9.0, 2.0, 2.0)])
    row = speed.measure(
        pair(
            lambda stage: next(mine)(stage),
            lambda stage: next(theirs)(stage),
            threads=speed.BEST_OF_BOTH,
        ),
        rounds=2,
        begin=on(time.clock),
    )
    assert (row.ours, row.peer, row.ratio_median) == (10.0, 5.0, 2.0)
    assert (row.ours_threads, row.peer_threads) == (1, 2)
    assert "1 / 2" in speed_report.markdown([row])
    assert time.worked[-4:] == [("1", 1), ("2", 2), ("3", 1), ("4", 2)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("peer", "told"),
    [
        (missing, "Peer: not installed"),
        (broken, "Peer: does not run (RuntimeError: no such device)"),
    ],
)
def test_a_peer_that_is_not_there_is_told_and_ours_measured(peer: Side, told: str) -> None:
    time = FakeTime()
    row = speed.measure(pair(time.side("ours", 1.0, 2.0), peer), rounds=1, begin=on(time.clock))
    assert (row.ours, row.peer, row.ratio_median, row.peer_name) == (5.0, None, None, told)
    assert told in speed_report.markdown([row])


def test_an_error_of_ours_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="no such"):
        speed.measure(pair(broken), rounds=1, begin=speed.begin_here)


def test_what_a_side_opened_is_closed() -> None:
    closed: list[str] = []

    def side(stage: Stage) -> Work:
        stage.exits.callback(closed.append, "closed")
        return lambda: 1.0

    speed.measure(pair(side, side), rounds=1, begin=speed.begin_here)
    assert closed == ["closed", "closed"]


def test_names_are_unique_and_in_their_groups() -> None:
    pairs = speed.all_pairs()
    names = [one.name for one in pairs]
    assert len(names) == len(set(names))
    assert not {*names} & {*speed.GROUPS}
    assert {one.group for one in pairs} == {*speed.GROUPS}
    assert all(one.unit.endswith("/s") and bool(one.peer) == bool(one.peer_name) for one in pairs)


def test_only_takes_groups_and_rows() -> None:
    pairs = speed.all_pairs()
    assert speed.select("", pairs) == pairs
    chosen = speed.select("replay, sac_update", pairs)
    assert {one.name for one in chosen if one.group != "replay"} == {"sac_update"}
    assert len(chosen) == 4


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["only=upates"], "there is no such group or row; did you mean updates?"),
        (["only=sac_updat"], "did you mean sac_update?"),
        (["only=zzz"], "there are: environments, replay, updates"),
        (["rounds=0"], "rounds=0: must be at least 1"),
        (["rounds=two"], "rounds=two: must be a whole number"),
        (["scale=big"], "scale=big: must be a number above 0"),
        (["scale=0"], "scale=0: must be a number above 0"),
        (["scale=nan"], "scale=nan: must be a number above 0"),
        (["format=xml"], "format=xml"),
        (["only=sac_update", "out=/proc/trimtab"], "cannot write /proc/trimtab"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["speed", *words])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == ""
    assert line in shown.err and shown.err.count("\n") == 1


def test_a_row_is_printed_in_every_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "begin_in_child", speed.begin_here)
    monkeypatch.setattr(speed, "all_pairs", lambda: [pair(nothing, missing)])
    for form in ("json", "markdown", "table"):
        assert speed_command("row", 2, "1", "", form) == 0
        shown = capsys.readouterr().out
        assert "Peer: not" in shown
        if form == "json":
            (row,) = json.loads(shown)
            assert tuple(row) == COLUMNS
            assert (row["peer"], row["ratio_median"], row["rounds"]) == (None, None, 2)


def test_out_holds_rows_and_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "begin_in_child", speed.begin_here)
    monkeypatch.setattr(speed, "all_pairs", lambda: [pair(nothing, nothing)])
    assert speed_command("", 1, "0.5", str(tmp_path / "new" / "out"), "json") == 0
    folder = tmp_path / "new" / "out"
    assert {path.name for path in folder.iterdir()} == {
        "speed.json", "speed.md", "machine.json",
    }  # fmt: skip
    assert json.loads((folder / "speed.json").read_text()) == json.loads(capsys.readouterr().out)
    assert (folder / "speed.md").read_text().count("\n") == 3
    machine = json.loads((folder / "machine.json").read_text())
    assert machine["processor"] and machine["cores"] and machine["packages"]["torch"]
    assert (machine["rounds"], machine["scale"]) == (1, 0.5)


def test_rows_so_far_are_kept_after_each() -> None:
    seen: list[list[str]] = []
    speed.measure_all(
        [pair(nothing), pair(nothing)],
        rounds=1,
        begin=speed.begin_here,
        done=lambda rows: seen.append([row.name for row in rows]),
    )
    assert seen == [["row"], ["row", "row"]]


def test_a_number_has_three_digits() -> None:
    shown = [speed_report.three_digits(v) for v in (0.0, 0.045678, 1.0, 12.34, 999.6, 41_234.0)]
    assert shown == ["0", "0.0457", "1.00", "12.3", "1,000", "41,200"]


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: A Fast One\n")
    assert speed_report.processor(info) == "A Fast One"
    assert speed_report.processor(tmp_path / "none")


def test_a_peer_of_another_environment_says_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "cores", lambda: 1)
    (pair,) = [one for one in speed.all_pairs() if one.name == "td3_bc_update"]
    monkeypatch.delenv("TRIMTAB_D3RLPY", raising=False)
    measured = functools.partial(speed.measure, rounds=1, scale=1e-4, begin=speed.begin_here)
    assert measured(pair).peer_name == "d3rlpy: not installed"
    monkeypatch.setenv("TRIMTAB_D3RLPY", sys.executable)  # a Python without d3rlpy
    row = measured(pair)
    assert row.peer is None and row.ours > 0
    assert (row.peer_name or "").startswith("d3rlpy: does not run (RuntimeError: d3rlpy's process")


def test_a_run_has_the_threads_of_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "cores", lambda: 2)
    (loop,) = [one for one in speed.all_pairs() if one.name == "sac_loop"]
    with ExitStack() as exits:
        turns = speed.begin_here(loop, "ours", 1e-4, exits)
        assert [one.threads for one in turns] == [1, 2]
        assert all(one.take() > 0 for one in turns)


@contextmanager
def quickly_compiled() -> Iterator[None]:
    """Have JAX compile without most of its optimizations."""
    import jax

    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_every_row_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    # With two threads a side would wait for a core that another test has.
    monkeypatch.setattr(speed, "cores", lambda: 1)
    # JAX compiles for minutes for the others of MJX, which differ from this one by a number, and
    # for Brax's PPO; and for a minute for the cheetah, whose place the smallest task takes.
    monkeypatch.setattr(mjx, "TASK", "PendulumSwingup")
    monkeypatch.setattr(latency, "SAMPLING_STEPS", 2)  # an export takes seconds for more
    pairs = [one for one in speed.all_pairs() if one.group != "mjx" or one.name == "mjx_64"]
    # The row of robosuite, whose arithmetic is compiled in both processes, has a quicker task.
    sac, overlapped = training.off_policy("sac"), training.off_policy("sac", "overlap=true")
    quicker = {"sac_overlap": {"ours": overlapped, "peer": sac}}
    pairs = [replace(one, **quicker.get(one.name, {})) for one in pairs]
    with quickly_compiled():
        rows = speed.measure_all(pairs, rounds=1, scale=1e-4, begin=speed.begin_here)
    assert all(isinstance(row, Row) and row.ours > 0 for row in rows)
    compared = [row for row in rows if row.peer is not None]
    assert {row.group for row in compared} == {*speed.GROUPS} - WITHOUT_PEERS
    assert all(row.ratio_min == row.ratio_median == row.ratio_max for row in compared)
    assert not [row.peer_name for row in rows if "does not run" in (row.peer_name or "")]


def test_a_turn_of_brax_is_one_part_of_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []

    def train(task: str, numbers: Any, count: int, steps: int, done: Any) -> None:
        assert steps == count * numbers.copies * numbers.rollout and task == "CheetahRun"
        for part in range(3):
            parts.append(part)
            done(1.0)

    monkeypatch.setattr(mjx, "train", train)
    work = mjx.brax_ppo(Stage(scale=0.25))
    assert parts == []
    for turn in range(3):
        assert work() == 256 * 32
        assert parts == [*range(turn + 1)]  # it waits for the next turn
    with pytest.raises(RuntimeError, match="ended"):
        work()


def test_each_side_has_a_process_of_its_own() -> None:
    """The allocator is told to keep memory in ours alone; both give rates, and both end."""
    (sample,) = [one for one in speed.all_pairs() if one.name == "sample"]
    with ExitStack() as exits:
        ours, theirs = (
            speed.begin_in_child(sample, which, 1e-3, exits) for which in ("ours", "peer")
        )
        calls: list[Any] = [side[0].take for side in (ours, theirs)]
        children = [call.func.__self__ for call in calls]
        assert len({os.getpid(), *(child.process.pid for child in children)}) == 3
        assert ours[0].take() > 0 and theirs[0].take() > 0
    assert [child.process.returncode for child in children] == [0, 0]
