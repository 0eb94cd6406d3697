"""A policy of which this process has the address alone."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loading import load_module
from websockets.asyncio.server import serve as websocket_server
from websockets.exceptions import ConnectionClosed

from trimtab.errors import TrimtabError
from trimtab.policies.agent import Agent
from trimtab.policies.base import Policy
from trimtab.policies.bundle.bundle import bundle_hash, load_bundle, open_bundle, save_bundle
from trimtab.policies.bundle.withheld import withhold_weights
from trimtab.policies.kinds import remote
from trimtab.policies.kinds.latent import LatentPolicy, latent_spec
from trimtab.policies.kinds.remote import RemotePolicy
from trimtab.policies.kinds.tanh_gaussian import TanhGaussianPolicy
from trimtab.policies.opening import load_policy
from trimtab.policies.runtime import NO_LIMITS
from trimtab.policies.serving.client import PolicyClient
from trimtab.policies.serving.codec import pack, unpack
from trimtab.policies.serving.remote import open_remote
from trimtab.policies.serving.runner import ServedRunner
from trimtab.policies.serving.server import Bounds
from trimtab.policies.serving.session import Session

pytestmark = pytest.mark.slow

hostile = load_module(Path(__file__).with_name("hostile.py"))
Serve = Callable[..., Any]
BundleOf = Callable[[str], Path]

CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgpDiKuSE4Enk3ag8V
bk8kJhsDLUT3/HioE370XaqvzbihRANCAATRqUr9wV1g0RHVGofWMAMaEeV63+5S
zavWP/F+o7POJYrVeZYpWNCUHaxlDhNGno8EEGn7mXiExqp4GXTHMX73
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUVTOX+yuIxPNfF8hVR8K1VqpImKYwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyOTA4MTMyOFoYDzIxMjYxMTA1
MDgxMzI4WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATRqUr9wV1g0RHVGofWMAMaEeV63+5SzavWP/F+o7POJYrVeZYpWNCU
HaxlDhNGno8EEGn7mXiExqp4GXTHMX73o2QwYjAdBgNVHQ4EFgQUGMaqOYQNHnvU
F3gac5gFDri60/wwHwYDVR0jBBgwFoAUGMaqOYQNHnvUF3gac5gFDri60/wwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQCUfCvY0p8mCQWU/TLqPsSLBXv4VqDtMU3TP+N4cAk+RQIhANPOfXJ4d0SXMYBJ
p0Bs/5lRc6IPCYYLetJblmQoUbCE
-----END CERTIFICATE-----
"""
"""A key and the certificate that it has signed itself, for 127.0.0.1 until the year 2126."""


@contextmanager
def answering(*answers: bytes | str) -> Iterator[str]:
    """A websocket server that sends one answer on connecting, and one for each request."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def converse(connection: Any) -> None:
        with suppress(ConnectionClosed):
            for answer in answers:
                await connection.send(answer)
                await connection.recv()

    async def run() -> None:
        async with websocket_server(converse, "127.0.0.1", 0, compression=None) as server:
            found["port"] = server.sockets[0].getsockname()[1]
            found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(60)
    try:
        yield f"ws://127.0.0.1:{found['port']}"
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(60)


def refused(address: str, **settings: Any) -> str:
    with pytest.raises(TrimtabError) as error:
        PolicyClient(address, **settings).close()
    text = str(error.value)
    assert text.startswith(address) and "\n" not in text
    return text


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_a_remote_policy_gives_the_bits_of_the_local_one(
    backend: str, serve: Serve, parts_bundle: Path
) -> None:
    served = serve(parts_bundle, backend=backend)
    bundle = open_remote(served.address)
    draw = np.random.default_rng(2)
    obs = {
        "state": draw.normal(size=(7, 2, 3)).astype(np.float32),
        "picture": draw.integers(0, 256, (7, 2, 2, 2, 3), dtype=np.uint8),
        "guidance": draw.normal(size=(7, 1)).astype(np.float32),
    }
    noise = draw.normal(size=(7, 4, 2)).astype(np.float32)
    tensors = {name: torch.from_numpy(part) for name, part in obs.items()}
    found = bundle.policy(tensors, torch.from_numpy(noise)).numpy()
    if backend == "onnx":
        expected = load_policy(parts_bundle).predict(obs, noise)
    else:
        with torch.no_grad():
            expected = open_bundle(parts_bundle).policy(tensors, torch.from_numpy(noise)).numpy()
    assert found.tobytes() == expected.tobytes()
    assert bundle.hash == bundle_hash(parts_bundle)
    assert not list(bundle.policy.parameters())


def test_a_recurrent_policy_keeps_its_state_on_the_clients_side(
    serve: Serve, recurrent_bundle: Path
) -> None:
    served = serve(recurrent_bundle)
    obs = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    remote_, local = open_remote(served.address).policy, open_bundle(recurrent_bundle).policy
    agents = [Agent(decide_with(one), 1, one.inputs) for one in (remote_, local)]
    for agent in agents:
        agent.reset(seeds=[0])
    runner, plain = ServedRunner(served.address, limits=NO_LIMITS), load_policy(recurrent_bundle)
    for row in obs:
        found, expected = (agent.act(row[None]) for agent in agents)
        assert found.tobytes() == expected.tobytes()
        assert runner.step(row).tobytes() == plain.step(row).tobytes()
    assert agents[0].with_memories(obs[:1])["state"].any()
    runner.close()


def decide_with(policy: Policy) -> Any:
    """Return a policy as a function of arrays."""

    def decide(obs: Any, noise: Any) -> Any:
        with torch.no_grad():
            given = {name: torch.as_tensor(part) for name, part in obs.items()}
            return policy(given, torch.as_tensor(noise)).numpy()

    return decide


def test_its_normalizer_is_that_of_the_black_box(
    serve: Serve, bundle_of: BundleOf, tmp_path: Path
) -> None:
    withheld = withhold_weights(bundle_of("flow"), tmp_path / "withheld")
    served = serve(withheld)
    local, far = open_bundle(withheld).policy, open_remote(served.address).policy
    assert torch.equal(local.normalizer.obs_shift, far.normalizer.obs_shift)
    assert torch.equal(local.normalizer.obs_scale, far.normalizer.obs_scale)
    assert far.normalizer.obs_shift.any()


def test_a_bundle_of_what_steers_it_names_its_address(
    serve: Serve, bundle_of: BundleOf, tmp_path: Path
) -> None:
    served = serve(bundle_of("flow"))
    base = open_remote(served.address).policy
    torch.manual_seed(0)
    steered = LatentPolicy(TanhGaussianPolicy(latent_spec(base, 1.5), hidden=(8,)), base)
    contract = {"env": "x/y", "control_rate": None, "act_steps": 2}
    folder = save_bundle(steered, tmp_path / "steered", contract=contract, onnx=False)
    again = load_bundle(folder).policy
    obs = np.ones((3, 6), np.float32)
    noise = np.zeros((3, *again.noise_shape), np.float32)
    local = open_bundle(bundle_of("flow")).policy
    with torch.no_grad():
        latent = steered.actor(torch.from_numpy(obs), torch.from_numpy(noise))
        expected = local(torch.from_numpy(obs), latent).numpy()
        assert np.abs(again(obs, noise) - expected).max() < 1e-5
        client = PolicyClient(serve(folder, backend="torch").address)  # what steers it is served
        assert np.abs(client.predict(obs, noise) - expected).max() < 1e-5
        client.close()
    with pytest.raises(TrimtabError, match="is no part of a graph"):
        save_bundle(steered, tmp_path / "graph", contract=contract)


def test_a_bundle_cannot_send_observations_anywhere(bundle_of: BundleOf) -> None:
    spec = open_bundle(bundle_of("flow")).policy.spec
    policy = RemotePolicy(spec, (4, 2), "ws://192.0.2.1:8000", "0" * 64)
    with pytest.raises(TrimtabError, match="if you trust it"):
        policy(torch.zeros(1, 6), torch.zeros(1, 4, 2))


def test_it_gives_no_gradients_and_is_copied(serve: Serve, bundle_of: BundleOf) -> None:
    policy = copy.deepcopy(open_remote(serve(bundle_of("flow")).address).policy)
    with pytest.raises(TrimtabError, match="no gradients"):
        policy(torch.zeros(1, 6), torch.zeros(1, 4, 2, requires_grad=True))
    assert policy(torch.zeros(1, 6), torch.zeros(1, 4, 2)).shape == (1, 4, 2)


def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "no server can be reached" in refused(f"ws://127.0.0.1:{port}")
    assert "no server can be reached" in refused("ws://no-such-host.invalid:80")
    for wrong in ("ws://", "ws://:1", "ws://127.0.0.1:port", "ws://127.0.0.1:99999999"):
        assert "is no address" in refused(wrong)


def test_somebody_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "does not answer" in refused(f"ws://127.0.0.1:{port}", seconds=0.5)
    with answering("text") as address:
        assert "takes no noise" in refused(address)
    with answering(pack({"reset_pose": [0.0] * 6})) as address:  # openpi's own
        assert "takes no noise" in refused(address)
    with answering(pack({"extensions": ["noise"]})) as address:
        assert "no contract" in refused(address)


def good_metadata(process: Any) -> dict[str, Any]:
    from trimtab.policies.bundle.files import Contract

    contract = Contract.parse(process.config, "")
    session = Session(process, contract, rows=100, seed=0, deterministic=True)
    found: dict[str, Any] = unpack(session.metadata(most_rows=100, most_bytes=10_000))
    return found


def test_a_lying_server_is_not_believed(served: Any) -> None:
    metadata = good_metadata(served.process)
    config = json.loads(metadata["config"])
    golden = metadata["golden"]
    for lie, words in (
        ({"config": json.dumps({**config, "control_rate": 1.0})}, "its hash differs"),
        ({"config": "[" * 5000}, "no contract"),
        ({"config": 5}, "no contract"),
        ({"golden": golden[:-4] + b"\0\0\0\1"}, "not its bundle's"),
        ({"golden": None}, "not its bundle's"),
        ({"most_rows": True}, "most_rows"),
    ):
        with answering(pack({**metadata, **lie})) as address:
            assert words in refused(address), lie
    true = np.zeros((32, 4, 2), np.float32)
    for answer, words in (
        (pack({"actions": true}), "do not replay"),
        (pack({"actions": true[:1]}), "shape"),
        (pack({"actions": true * np.nan}), "NaN"),
        (pack({}), "actions"),
        (pack([1]), "actions"),
        ("worker: it ended", "worker: it ended"),
        (hostile.STRUCTURED["objects"], "cannot be read"),
    ):
        with answering(pack(metadata), answer) as address:
            assert words in refused(address)


def test_a_frozen_server_is_given_up(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"))
    client = PolicyClient(served.address)
    client.seconds = 1.0
    obs, noise = np.zeros((1, 6), np.float32), np.zeros((1, 4, 2), np.float32)
    before = client.predict(obs, noise)
    os.kill(served.process.process_id, signal.SIGSTOP)
    with pytest.raises(TrimtabError, match="did not answer within 1 s"):
        client.predict(obs, noise)
    os.kill(served.process.process_id, signal.SIGCONT)
    client.seconds = 60.0
    assert client.predict(obs, noise).tobytes() == before.tobytes()
    client.close()


def test_the_answer_to_an_interrupted_request_is_not_that_of_the_next_one(
    serve: Serve, bundle_of: BundleOf
) -> None:
    served = serve(bundle_of("flow"))
    client = PolicyClient(served.address)
    noise, (first, second) = np.zeros((1, 4, 2), np.float32), np.eye(6, dtype=np.float32)[:2, None]
    expected = client.predict(second, noise)
    os.kill(served.process.process_id, signal.SIGSTOP)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl+C
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            client.predict(first, noise)
    finally:
        signal.signal(signal.SIGALRM, handler)
        os.kill(served.process.process_id, signal.SIGCONT)
    assert client.predict(second, noise).tobytes() == expected.tobytes()
    client.close()


def test_a_lost_connection_is_made_again(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"), bounds=Bounds(idle_seconds=0.3))
    client = PolicyClient(served.address)
    obs, noise = np.zeros((1, 6), np.float32), np.zeros((1, 4, 2), np.float32)
    before = client.predict(obs, noise)
    assert client._connection is not None
    with pytest.raises(Exception, match="too slow"):  # the server closes what is idle
        client._connection.recv(60)
    assert client.predict(obs, noise).tobytes() == before.tobytes()
    client.close()


def test_another_policy_at_the_address_is_refused(
    serve: Serve, bundle_of: BundleOf, parts_bundle: Path
) -> None:
    first = serve(bundle_of("flow"))
    policy = open_remote(first.address).policy
    remote.servers[first.address] = PolicyClient(serve(bundle_of("gaussian")).address)
    with pytest.raises(TrimtabError, match="has another policy now"):
        policy(torch.zeros(1, 6), torch.zeros(1, 4, 2))


def test_a_key_is_sent(serve: Serve, bundle_of: BundleOf, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(bundle_of("flow"), key="open sesame")
    assert "TRIMTAB_SERVE_KEY" in refused(served.address)
    monkeypatch.setenv("TRIMTAB_SERVE_KEY", "open sesame")
    PolicyClient(served.address).close()


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two\nlines", "sesame "])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(
    key: str, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIMTAB_SERVE_KEY", key)
    with pytest.raises(TrimtabError, match="TRIMTAB_SERVE_KEY: has") as error:
        PolicyClient(served.address)
    assert key.split()[-1] not in str(error.value)


def test_a_certificate_that_does_not_hold_is_named(tmp_path: Path) -> None:
    """Connect over TLS to a server whose certificate nobody has signed."""
    pem = tmp_path / "server.pem"
    pem.write_text(CERTIFICATE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def shake_hands(listening: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=shake_hands, args=(listening,))
        thread.start()
        port = listening.getsockname()[1]
        assert "certificate does not hold (self" in refused(f"wss://127.0.0.1:{port}")
        thread.join(60)


def test_too_many_rows_and_clients_are_named(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"), bounds=Bounds(connections=1))
    client = PolicyClient(served.address)
    assert "connections=" in refused(served.address)
    rows = client._most_rows + 1
    with pytest.raises(TrimtabError, match="rows at a time"):
        client.predict(np.zeros((rows, 6), np.float32), np.zeros((rows, 4, 2), np.float32))
    client.close()
