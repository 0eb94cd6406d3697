from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
import torch
from loading import load_module
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.policies.opening import load_policy
from trimtab.policies.serving.server import Bounds, PolicyServer
from trimtab.policies.serving.worker import PolicyProcess
from trimtab.types import PolicySpec

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
hostile = load_module(HERE / "hostile.py")
Serve = Callable[..., Any]
BundleOf = Callable[[str], Path]
OBS = np.linspace(-1, 1, 6, dtype=np.float32)


def theirs(value: Any) -> Any:
    """What openpi's client writes for an array (its ``pack_array``)."""
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str,
            b"shape": value.shape,
        }  # fmt: skip
    return value


def read(frame: Any) -> Any:
    """What openpi's client reads (its ``unpack_array``)."""

    def array(entries: dict[Any, Any]) -> Any:
        if b"__ndarray__" in entries:
            dtype = np.dtype(entries[b"dtype"])
            return np.ndarray(buffer=entries[b"data"], dtype=dtype, shape=entries[b"shape"])
        return entries

    assert isinstance(frame, bytes), frame
    return msgpack.unpackb(frame, object_hook=array)


def joined(served: Any, **settings: Any) -> tuple[ClientConnection, Any]:
    """Connect as openpi's client does; return the connection and the metadata."""
    client = connect(
        served.address, compression=None, max_size=None, proxy=None, legacy=True, **settings
    )
    return client, read(client.recv(60))


def ask(client: ClientConnection, **request: Any) -> Any:
    client.send(msgpack.packb(request, default=theirs))
    answer = client.recv(60)
    return answer if isinstance(answer, str) else read(answer)


def closed_with(client: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        for _ in range(100):
            client.recv(60)
    return client.close_code


def test_openpis_client_is_answered_as_the_runner_acts(served: Any, bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("flow"))
    client, metadata = joined(served)
    with client:
        assert metadata["act_steps"] == 3 and metadata["horizon"] == 4
        assert json.loads(metadata["config"])["sha256"] == metadata["contract_sha"]
        previous = None
        for tick in range(3):
            answer = ask(client, obs=OBS + tick)
            expected = np.stack([runner.step(OBS + tick) for _ in range(3)])
            assert answer["actions"].tobytes() == expected.tobytes()
            timing = answer["server_timing"]
            assert timing["infer_ms"] >= answer["policy_timing"]["infer_ms"] > 0
            assert ("prev_total_ms" in timing) == (previous is not None)
            previous = timing
            assert not [key for key, value in answer.items() if getattr(value, "ndim", 2) < 2]


def test_the_pages_client_is_answered(
    served: Any, bundle_of: BundleOf, root: Path, tmp_path: Path
) -> None:
    page = (root / "docs" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python file=client.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "client.py").write_text(code, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "client.py"), served.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    runner, obs = load_policy(bundle_of("flow")), np.float32([0.1, -0.2, 0.3, 0, 0, 0.5])
    assert np.float32(json.loads(done.stdout)).tolist() == [
        runner.step(obs).tolist() for _ in range(3)
    ]


def test_two_clients_have_their_own_histories_and_noise(serve: Serve, parts_bundle: Path) -> None:
    served = serve(parts_bundle)
    runners = [load_policy(parts_bundle), load_policy(parts_bundle)]
    clients = [joined(served)[0], joined(served)[0]]
    draw = np.random.default_rng(0)
    for turn in (0, 1, 1, 0, 0, 1):
        state = draw.normal(size=3).astype(np.float32)
        picture = draw.integers(0, 256, (2, 2, 3), dtype=np.uint8)
        found = ask(clients[turn], state=state, picture=picture)["actions"]
        steps = [runners[turn].step({"state": state, "picture": picture}) for _ in range(2)]
        assert found.tobytes() == np.stack(steps).tobytes()
    assert ask(clients[0], endpoint="reset") == "reset successful"
    runners[0].reset()
    obs = {"state": np.ones(3, np.float32), "picture": np.zeros((2, 2, 3), np.uint8)}
    first = ask(clients[0], **obs, guidance=np.float32([4.0]))["actions"]
    runners[0].reset(guidance=4.0)
    assert first[0].tobytes() == runners[0].step(obs).tobytes()
    for client in clients:
        client.close()


@pytest.mark.parametrize("backend", ["onnx", "torch"])
def test_each_client_of_a_recurrent_policy_has_its_own_state(
    backend: str, serve: Serve, recurrent_bundle: Path
) -> None:
    served = serve(recurrent_bundle, backend=backend)
    runners = [load_policy(recurrent_bundle), load_policy(recurrent_bundle)]
    clients = [joined(served)[0], joined(served)[0]]
    draw = np.random.default_rng(0)
    for turn in (0, 1, 1, 0, None, 0, 0, 1):
        if turn is None:
            assert ask(clients[0], endpoint="reset") == "reset successful"
            runners[0].reset()
            continue
        obs = draw.normal(size=4).astype(np.float32)
        found = ask(clients[turn], obs=obs)["actions"]
        assert np.allclose(found[0], runners[turn].step(obs), atol=1e-6)
    later, fresh = (ask(joined(served)[0] if i else clients[1], obs=OBS[:4]) for i in (0, 1))
    assert np.abs(later["actions"] - fresh["actions"]).max() > 1e-3  # a connection begins anew
    assert "state" in ask(clients[0], obs=OBS[:4], state=np.zeros(3, np.float32))
    for client in clients:
        client.close()


def test_noise_over_the_wire_gives_the_local_action(served: Any, bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("flow"))
    draw = np.random.default_rng(1)
    obs = draw.normal(size=(5, 6)).astype(np.float32)
    noise = draw.normal(size=(5, 4, 2)).astype(np.float32)
    with joined(served)[0] as client:
        rows = ask(client, obs=obs, noise=noise)["actions"]
        assert rows.tobytes() == runner.predict(obs, noise).tobytes()
        one = ask(client, obs=obs[0], noise=noise[0])["actions"]
        assert one.tobytes() == runner.predict(obs[:1], noise[:1])[0, :3].tobytes()


def test_tick_deadline_and_contract(served: Any) -> None:
    client, metadata = joined(served)
    with client:
        sha = metadata["contract_sha"]
        answer = ask(client, obs=OBS, tick=41, deadline_ms=60_000.0, contract_sha=sha)
        assert answer["tick"] == 41
        refused = ask(client, obs=OBS, deadline_ms=1e-6)
        assert refused.startswith("late: ")
        assert "actions" in ask(client, obs=OBS)  # the connection goes on
        assert ask(client, obs=OBS, contract_sha="0" * 64).startswith("contract: ")
        assert closed_with(client) == 1011


def test_an_answer_that_is_late_leaves_what_was_observed(serve: Serve, parts_bundle: Path) -> None:
    served = serve(parts_bundle)
    runner = load_policy(parts_bundle)
    obs = [
        {"state": np.full(3, x, np.float32), "picture": np.full((2, 2, 3), i, np.uint8)}
        for i, x in enumerate((0.1, 0.2, 0.3, 0.4))
    ]
    with joined(served)[0] as client:
        for now in obs:
            expected = np.stack([runner.step(now) for _ in range(2)])
            if now is obs[1]:
                with served.process.turn():  # another client's decision, which takes too long
                    assert ask(client, **now, deadline_ms=50.0).startswith("late: ")
            elif now is obs[2]:  # its own does
                assert ask(client, **now, deadline_ms=1e-6).startswith("late: ")
            else:
                assert ask(client, **now)["actions"].tobytes() == expected.tobytes()


def test_no_backend_sends_an_action_that_is_not_finite(serve: Serve, tmp_path: Path) -> None:
    policy = FlowPolicy(PolicySpec(6, 1, 2, (-1.0, -1.0), (1.0, 1.0)), hidden=(8,))
    policy.normalizer.take_range(torch.linspace(-1e-3, 1e-3, 12).reshape(2, 6))
    contract = {"env": "x/y", "control_rate": None, "act_steps": 1}
    folder = save_bundle(policy, tmp_path / "bundle", contract=contract)
    for backend in ("onnx", "torch"):
        with joined(serve(folder, backend=backend))[0] as client:
            # Divided by its range, this observation is infinite.
            assert ask(client, obs=OBS * 3e38) == "policy: the policy failed with this observation"
            assert np.isfinite(ask(client, obs=OBS)["actions"]).all()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({}, "obs alone, got nothing"),
        ({"obs": OBS, "prompt": "pick it up"}, "obs alone, got obs, prompt"),
        ({"obs": OBS[:5]}, "(5,)"),
        ({"obs": OBS * np.nan}, "NaN"),
        ({"obs": "text"}, "observation"),
        ({"obs": [[1.0], [1.0, 2.0]]}, "observation"),
        ({"obs": b"123456"}, "observation"),
        ({"obs": OBS, "noise": np.zeros((4, 3), np.float32)}, "noise"),
        ({"obs": OBS[None], "noise": np.zeros((2, 4, 2), np.float32)}, "noise"),
        ({"obs": OBS[None][:0], "noise": np.zeros((0, 4, 2), np.float32)}, "observation"),
        ({"obs": OBS, "tick": True}, "tick"),
        ({"obs": OBS, "deadline_ms": -1.0}, "deadline_ms"),
        ({"obs": OBS, "deadline_ms": float("nan")}, "deadline_ms"),
        ({"endpoint": "kill"}, "endpoint"),
        ({"endpoint": OBS}, "endpoint"),
        ({"obs": OBS, "tick": OBS}, "tick"),
        ({"obs": {"a": OBS}}, "observation"),
        ({"type": OBS, "payload": {}, "seq": 1, "timestamp": 2.0}, "obs alone"),
        ({"type": "hello", "payload": {"protocol_version": 2}, "seq": 1, "timestamp": 2.0}, "1"),
    ],
)
def test_what_the_policy_cannot_read_is_refused(served: Any, request_: Any, words: str) -> None:
    with joined(served)[0] as client:
        answer = ask(client, **request_)
        assert answer.startswith("request: ") and words in answer
        assert "Traceback" not in answer and "/" not in answer and "\n" not in answer
        assert closed_with(client) == 1011


def test_too_many_rows_are_refused(served: Any) -> None:
    client, metadata = joined(served)
    with client:
        rows = metadata["most_rows"]
        obs, noise = np.zeros((rows, 6), np.float32), np.zeros((rows, 4, 2), np.float32)
        assert ask(client, obs=obs, noise=noise)["actions"].shape == (rows, 4, 2)
        noise = np.zeros((rows + 1, 4, 2), np.float32)
        answer = ask(client, obs=np.zeros((rows + 1, 6), np.float32), noise=noise)
        assert isinstance(answer, str) and "rows" in answer


@pytest.mark.parametrize("what", [
    "objects", "void", "record", "minus one", "overflow", "longer", "depth 1025", "key twice",
    "extension", "NaN is a key",
])  # fmt: skip
def test_hostile_frames_are_refused_and_the_next_client_served(served: Any, what: str) -> None:
    with joined(served)[0] as client:
        client.send(hostile.STRUCTURED[what])
        answer = client.recv(60)
        assert isinstance(answer, str) and answer.startswith("frame: ")
        assert answer.count("frame") == 1
        assert closed_with(client) == 1011
    with joined(served)[0] as client:
        assert ask(client, obs=OBS)["actions"].shape == (3, 2)


def test_text_and_other_values_are_refused(served: Any) -> None:
    for frame in ("text", msgpack.packb([1, 2]), msgpack.packb(None)):
        with joined(served)[0] as client:
            client.send(frame)
            assert str(client.recv(60)).split(":")[0] in ("frame", "request")


def test_frames_over_the_bound_close_the_connection(served: Any) -> None:
    client, metadata = joined(served)
    with client:
        client.send(b"\0" * (metadata["most_bytes"] + 1))
        assert closed_with(client) == 1009
    with joined(served)[0] as client:
        with suppress(ConnectionClosed):
            client.send(b"\0" * 16 for _ in range(70_000))
        assert closed_with(client) == 1009


def test_a_megabyte_is_read_and_one_byte_more_is_not(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"), bounds=Bounds(most_bytes=1 << 20))
    with joined(served)[0] as client:
        client.send(b"\0" * (1 << 20))
        assert str(client.recv(60)).startswith("frame: ")
    with joined(served)[0] as client:
        client.send(b"\0" * ((1 << 20) + 1))
        assert closed_with(client) == 1009


def handshake(port: int, *, extensions: str = "") -> tuple[socket.socket, bytes]:
    """Open a websocket by hand; return it with the answer's head."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=60)
    raw.sendall(
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        + (f"Sec-WebSocket-Extensions: {extensions}\r\n" if extensions else "").encode()
        + b"\r\n"
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += raw.recv(1)
    return raw, head


def read_to_end(raw: socket.socket) -> bytes:
    found = b""
    while piece := raw.recv(65536):
        found += piece
    return found


def test_a_bomb_of_zeros_is_never_inflated(served: Any) -> None:
    raw, head = handshake(served.port, extensions="permessage-deflate")
    assert b"101" in head and b"permessage-deflate" not in head
    packer = zlib.compressobj(wbits=-15)
    bomb = packer.compress(b"\0" * 50_000_000) + packer.flush(zlib.Z_SYNC_FLUSH)
    # Python's own count of what it allocates: the process's memory also has the fifty million zeros
    # that were packed above, given back to the system or not.
    tracemalloc.start()
    with raw:
        # FIN, RSV1 (compressed), binary; masked with zeros, so that the bytes stay as they are.
        raw.sendall(
            bytes([0xC2, 0xFE]) + len(bomb[:60000]).to_bytes(2, "big") + bytes(4) + bomb[:60000]
        )
        assert read_to_end(raw).endswith((1002).to_bytes(2, "big") + b"reserved bits must be 0")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000


def test_a_slow_client_is_closed_and_others_are_served(serve: Serve, bundle_of: BundleOf) -> None:
    assert Bounds().handshake_seconds == 10.0
    bounds = Bounds(handshake_seconds=0.5, message_seconds=0.5, idle_seconds=1.0)
    served = serve(bundle_of("flow"), bounds=bounds)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as half:
        begun = time.monotonic()
        half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        read_to_end(half)  # which ends, as the server has closed it
        assert time.monotonic() - begun > 0.4
    raw, _ = handshake(served.port)
    with raw:  # a first fragment, and no second one
        raw.sendall(bytes([0x02, 0x81]) + bytes(4) + b"\xc0")
        assert read_to_end(raw).endswith((1008).to_bytes(2, "big") + b"too slow")
    raw, _ = handshake(served.port)
    with raw:  # nothing at all
        assert read_to_end(raw).endswith((1008).to_bytes(2, "big") + b"too slow")
    with joined(served)[0] as client:
        assert ask(client, obs=OBS)["actions"].shape == (3, 2)


def get(served: Any, path: str, method: str = "GET") -> tuple[int, str]:
    address = f"http://127.0.0.1:{served.port}{path}"
    asked = urllib.request.Request(address, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_and_wrong_paths(served: Any) -> None:
    assert get(served, "/healthz") == (200, "OK\n")
    assert get(served, "/health")[0] == 200
    assert get(served, "/elsewhere")[0] == 404
    assert get(served, "/healthz", "DELETE")[0] == 405


def test_a_key_is_compared_whole(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"), key="correct")
    for wrong in (
        None,
        "Api-Key ",
        "Api-Key correc",
        "Api-Key correcx",
        "Api-Key correctx",
        "correct",
    ):
        headers = {"Authorization": wrong} if wrong is not None else None
        with pytest.raises(InvalidStatus) as refused:
            joined(served, additional_headers=headers)
        assert refused.value.response.status_code == 401
    assert get(served, "/healthz")[0] == 200
    with joined(served, additional_headers={"Authorization": "Api-Key correct"})[0] as client:
        assert ask(client, obs=OBS)["actions"].shape == (3, 2)


def test_pages_of_a_browser_may_not_ask(served: Any) -> None:
    with pytest.raises(InvalidStatus) as refused:
        joined(served, origin="http://127.0.0.1")
    assert refused.value.response.status_code == 403


def test_others_need_a_key(bundle_of: BundleOf) -> None:
    process = PolicyProcess(str(bundle_of("flow")))
    try:
        with pytest.raises(TrimtabError, match="TRIMTAB_SERVE_KEY"):
            PolicyServer(process, host="0.0.0.0")
        PolicyServer(process, host="0.0.0.0", key="secret")
        PolicyServer(process, host="::1")
    finally:
        process.close()


def test_connections_are_bounded(serve: Serve, bundle_of: BundleOf) -> None:
    served = serve(bundle_of("flow"), bounds=Bounds(connections=2))
    first, second = joined(served)[0], joined(served)[0]
    with pytest.raises(InvalidStatus) as refused:
        joined(served)
    assert refused.value.response.status_code == 503
    first.close()
    for _ in range(600):  # until the server has seen that it went
        try:
            first = joined(served)[0]
            break
        except InvalidStatus:
            time.sleep(0.1)
    assert ask(first, obs=OBS)["actions"].shape == (3, 2)
    first.close()
    second.close()


def test_a_killed_worker_costs_one_answer_and_no_history(serve: Serve, parts_bundle: Path) -> None:
    served = serve(parts_bundle)
    runner = load_policy(parts_bundle)
    obs = [
        {"state": np.full(3, x, np.float32), "picture": np.full((2, 2, 3), i, np.uint8)}
        for i, x in enumerate((0.1, 0.2, 0.3))
    ]
    noise = np.zeros((4, 2), np.float32)
    with joined(served)[0] as client, joined(served)[0] as other:
        for one in (client, other):
            ask(one, **obs[0], noise=noise)
        held = threading.Event()

        def freeze_and_kill() -> None:
            process_id = served.process.process_id
            os.kill(process_id, signal.SIGSTOP)  # so that it is killed in the middle of a decision
            held.set()
            while not served.process._turn.locked():
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(process_id, signal.SIGKILL)

        killer = threading.Thread(target=freeze_and_kill)
        killer.start()
        held.wait(60)
        assert ask(client, **obs[1], noise=noise).startswith("worker: ")
        killer.join()
        raw, _ = handshake(served.port)  # a client that dies within its request
        raw.sendall(bytes([0x02, 0x81]) + bytes(4) + b"\xc0")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
        found = {
            (1, 2): ask(client, **obs[2], noise=noise)["actions"],
            (0, 1): ask(other, **obs[1], noise=noise)["actions"],
        }
    for seen, action in found.items():
        past = {name: np.stack([obs[i][name] for i in seen])[None] for name in obs[0]}
        local = runner.predict({**past, "guidance": np.float32([[1.5]])}, noise[None])
        assert action.tobytes() == local[0, :2].tobytes()


def test_a_hanging_worker_is_given_up_while_the_server_answers(
    serve: Serve, bundle_of: BundleOf
) -> None:
    served = serve(bundle_of("flow"), seconds=6.0)
    with joined(served)[0] as client, joined(served)[0] as other:
        assert "actions" in ask(client, obs=OBS)
        os.kill(served.process.process_id, signal.SIGSTOP)
        client.send(msgpack.packb({"obs": OBS}, default=theirs))
        while not served.process._turn.locked():
            time.sleep(0.01)
        assert get(served, "/healthz")[0] == 200
        assert other.ping().wait(60)
        assert ask(other, obs=OBS, deadline_ms=100.0).startswith("late: ")
        with pytest.raises(TimeoutError):  # all this while the first one still waits
            client.recv(0)
        assert str(client.recv(60)).startswith("timeout: ")
        assert "actions" in ask(client, obs=OBS)  # the connection and the server go on


def test_a_replaced_bundle_is_not_served(serve: Serve, copy_of: BundleOf, reseal: Any) -> None:
    folder = copy_of("flow")
    served = serve(folder)
    with joined(served)[0] as client:
        assert "actions" in ask(client, obs=OBS)
        reseal(folder, config={"control_rate": 99.0})
        os.kill(served.process.process_id, signal.SIGKILL)
        assert psutil.wait_procs([psutil.Process(served.process.process_id)], timeout=60)
        answer = ask(client, obs=OBS)
        assert answer.startswith("worker: ") and "others now" in answer
        assert str(folder) not in answer


def test_vla_evals_client_is_known_by_its_hello(served: Any, bundle_of: BundleOf) -> None:
    runner = load_policy(bundle_of("flow"))

    def message(kind: str, payload: Any, seq: int) -> bytes:
        def array(value: Any) -> Any:  # as its encode_ndarray
            return {"__ndarray__": True, "data": value.tobytes(), "dtype": value.dtype.str,
                    "shape": list(value.shape)}  # fmt: skip

        return bytes(msgpack.packb(
            {"type": kind, "payload": payload, "seq": seq, "timestamp": time.time()}, default=array
        ))  # fmt: skip

    with connect(served.address, compression=None, max_size=None, proxy=None) as client:
        client.send(message("hello", {"harness_version": "0.4", "protocol_version": 1}, 1))
        hello = msgpack.unpackb(client.recv(60))  # the metadata are the answer
        assert hello["type"] == "hello" and hello["payload"]["protocol_version"] == 1
        assert {"type", "payload", "seq", "timestamp"} <= hello.keys()
        number = 1
        for episode in range(2):
            number += 1
            client.send(message("episode_start", {"task": {}}, number))
            for tick in range(4):
                number += 1
                client.send(message("observation", {"obs": OBS + tick}, number))
                answer = msgpack.unpackb(client.recv(60))
                assert (answer["type"], answer["seq"]) == ("action", number)
                sent = answer["payload"]["actions"]
                assert sent.keys() == {"__ndarray__", "data", "dtype", "shape"}  # keys of text
                action = np.frombuffer(sent["data"], sent["dtype"]).reshape(sent["shape"])
                assert action.tobytes() == runner.step(OBS + tick).tobytes(), (episode, tick)
            number += 1
            client.send(message("episode_end", {"success": True}, number))
            runner.reset()
        client.send(message("observation", {"obs": OBS[:2]}, 99))
        answer = msgpack.unpackb(client.recv(60))
        assert (answer["type"], answer["seq"]) == ("error", 99)
        client.send(message("observation", {"obs": OBS}, 100))
        assert msgpack.unpackb(client.recv(60))["type"] == "action"


def test_hostile_frames_leave_a_server_serving(bundle_of: BundleOf, root: Path) -> None:
    command = [sys.executable, HERE / "fuzz_server.py", bundle_of("flow"), "11", "200"]
    path = f"{root / 'tests/helpers'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout)
    assert found["events"] == "0"
    assert found["codes"].keys() <= {"frame", "request", "NoneType", "bytes"}
    assert found["codes"]["frame"] > 50
