"""A policy that computes in another process, also one that is killed or hangs."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import TrimtabError
from trimtab.policies import runtime
from trimtab.policies.robot.inference import Worker
from trimtab.policies.robot.plan import Array
from trimtab.policies.runtime import NO_LIMITS, PolicyRunner, SafeAction

OBS = np.linspace(-1, 1, 6)
SAFE = (0.5, 0.25)
load_policy = functools.partial(runtime.load_policy, limits=NO_LIMITS)
BundleOf = Callable[[str], Path]


@pytest.fixture
def apart(bundle_of: BundleOf) -> Iterator[PolicyRunner]:
    runner = load_policy(
        bundle_of("flow"), seed=7, fallback=SafeAction(safe=SAFE), apart=True, deterministic=False
    )
    yield runner
    runner.close()


def process_of(runner: PolicyRunner) -> subprocess.Popen[bytes]:
    assert isinstance(runner._inference, Worker)
    return runner._inference.child.process


def wait_for_plan(runner: PolicyRunner) -> None:
    """Step until a chunk has come; each step is a tick on which the robot stands still."""
    while runner.step(OBS).tolist() == list(SAFE):
        time.sleep(0.005)


def wait_for_failure(runner: PolicyRunner, times: int = 1) -> None:
    """Step without a plan until a request has failed; the fallback is played meanwhile."""
    deadline = time.monotonic() + 30.0
    while runner.counts["failed"] < times:
        assert time.monotonic() < deadline and runner.step(OBS).tolist() == list(SAFE)
        time.sleep(0.005)


def test_another_process_gives_the_same_bits(apart: PolicyRunner, bundle_of: BundleOf) -> None:
    wait_for_plan(apart)
    noise = load_policy(bundle_of("flow"), seed=7, deterministic=False).sample_noise(1)
    chunk = apart.predict(OBS[None], noise)[0]
    assert np.array_equal(apart.plan().actions, chunk[1:])
    assert apart.counts["empty"] == apart.counts["fallback"]


def test_a_killed_process_ends_in_the_fallback(apart: PolicyRunner) -> None:
    wait_for_plan(apart)
    process_of(apart).kill()
    process_of(apart).wait()
    played = [apart.step(OBS).tolist() for _ in range(8)]
    assert played[4:] == [list(SAFE)] * 4  # a chunk of 4 has at most 3 left
    wait_for_failure(apart)
    wait_for_plan(apart)  # of a new process
    assert (apart.counts["failed"], apart.counts["restarted"]) == (1, 1)


def test_a_hanging_process_is_killed_after_its_time_and_replaced(bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("flow"), fallback=SafeAction(safe=SAFE), apart=True, timeout=2.0)
    try:
        wait_for_plan(runner)
        first, begun = process_of(runner), time.monotonic()
        first.send_signal(signal.SIGSTOP)
        for _ in range(4):  # what is left of the plan
            runner.step(OBS)
        wait_for_failure(runner)
        assert time.monotonic() - begun >= 2.0 and first.poll() == -signal.SIGKILL
        wait_for_plan(runner)
        assert process_of(runner).pid != first.pid
        assert runner.counts["restarted"] == runner.counts["failed"] > 0
        runner.reset()
        assert not runner.counts["restarted"]
    finally:
        runner.close()


def test_a_process_is_not_replaced_by_one_of_another_bundle(
    copy_of: Callable[[str], Path], reseal: Callable[..., None]
) -> None:
    folder = copy_of("flow")
    runner = load_policy(folder, fallback=SafeAction(safe=SAFE), apart=True)
    try:
        reseal(folder, config={"control_rate": 20.0})
        process_of(runner).kill()
        wait_for_failure(runner, times=2)
        assert not runner.counts["restarted"]
    finally:
        runner.close()


def test_closing_in_the_midst_of_a_replacement_leaves_no_process(apart: PolicyRunner) -> None:
    first = process_of(apart)
    first.kill()
    apart.step(OBS)
    while process_of(apart) is first:
        time.sleep(0.001)
    apart.close()
    assert process_of(apart).poll() is not None


def test_a_hanging_process_ends_in_the_fallback_and_is_closed(apart: PolicyRunner) -> None:
    wait_for_plan(apart)
    process_of(apart).send_signal(signal.SIGSTOP)
    played = [apart.step(OBS).tolist() for _ in range(8)]
    assert played[4:] == [list(SAFE)] * 4
    apart.close()
    assert process_of(apart).poll() is not None


def test_a_request_that_the_process_does_not_take_holds_nobody_up(apart: PolicyRunner) -> None:
    """A pipe takes 64 KiB; a request with a picture is longer."""
    worker = apart._inference
    process_of(apart).send_signal(signal.SIGSTOP)
    picture = np.zeros((1, 1_000_000), np.float32)
    asked = threading.Thread(
        target=worker.begin, args=(picture, np.zeros((1, 1), np.float32)), daemon=True
    )
    asked.start()
    asked.join(5.0)
    try:
        assert not asked.is_alive() and worker.poll() is None
    finally:
        process_of(apart).kill()
    apart.close()


def answer_of(worker: Worker) -> Array:
    """Wait for the answer to the last request."""
    deadline = time.monotonic() + 30.0
    while (answer := worker.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return answer


def test_an_answer_is_never_that_of_an_older_request(apart: PolicyRunner) -> None:
    """Who asked may have been interrupted after the request was sent, and asks again."""
    worker, noise = apart._inference, np.zeros((1, 4, 2), np.float32)
    assert isinstance(worker, Worker)
    for obs in (OBS, 2 * OBS):
        worker.begin(obs[None].astype(np.float32), noise)
    expected = apart.predict(2 * OBS[None], noise)
    assert np.array_equal(apart.limited(answer_of(worker)), expected)


def test_a_process_that_answers_what_cannot_be_read_is_replaced(apart: PolicyRunner) -> None:
    worker, noise = apart._inference, np.zeros((1, 4, 2), np.float32)
    assert isinstance(worker, Worker)
    ours, theirs = os.pipe()
    worker.child.process.stdout = os.fdopen(ours, "rb")
    os.write(theirs, b"no JSON\n")
    for told in ("JSON|Expecting", "the process for it ended"):
        worker.begin(OBS[None].astype(np.float32), noise)
        with pytest.raises(TrimtabError, match=told):
            answer_of(worker)
    os.close(theirs)
    worker.begin(OBS[None].astype(np.float32), noise)
    assert answer_of(worker).shape == (1, 4, 2) and worker.restarts == 1


def test_an_answer_of_which_half_is_there_holds_nobody_up(apart: PolicyRunner) -> None:
    worker = apart._inference
    assert isinstance(worker, Worker)
    ours, theirs = os.pipe()
    worker.child.process.stdout = os.fdopen(ours, "rb")
    os.write(theirs, b'{"value": "AA')
    worker.begin(OBS[None].astype(np.float32), np.zeros((1, 4, 2), np.float32))
    asked = threading.Thread(target=worker.poll, daemon=True)
    asked.start()
    asked.join(5.0)
    waited = asked.is_alive()
    os.close(theirs)
    assert not waited


def test_a_process_needs_a_fallback_and_a_bundle(bundle_of: BundleOf, tmp_path: Path) -> None:
    with pytest.raises(TrimtabError, match="needs a fallback"):
        load_policy(bundle_of("flow"), apart=True)
    contract = load_policy(bundle_of("flow")).contract
    with pytest.raises(TrimtabError, match="check the path"):
        Worker(tmp_path / "nothing", contract)
    for wrong in (0, True):
        with pytest.raises(TrimtabError, match=f"timeout={wrong}"):
            load_policy(
                bundle_of("flow"), apart=True, fallback=SafeAction(safe=SAFE), timeout=wrong
            )
