"""Send hostile frames to a server whose process reports what it should never do.

    python tests/policies/serving/fuzz_server.py <bundle> <seed> <frames>

The bundle reads six numbers and plans four actions of two, as those of the tests do. After every
batch a valid request has to be answered as before the first one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from loading import load_module  # noqa: E402

from trimtab.policies.serving.codec import pack, unpack  # noqa: E402

hostile = load_module(Path(__file__).with_name("hostile.py"))
BATCH = 50


def serve(bundle: str) -> None:
    """Serve a bundle; report forbidden events once a line comes in, and end with the input."""
    from trimtab.policies.serving.server import PolicyServer
    from trimtab.policies.serving.worker import PolicyProcess

    process = PolicyProcess(bundle)
    server = PolicyServer(process, port=0)
    events: list[str] = []
    watching = threading.Event()

    def watch(event: str, arguments: Any) -> None:
        if watching.is_set() and (
            event in hostile.FORBIDDEN or (event == "open" and arguments[1] != "r")
        ):
            events.append(f"{event} {arguments!r:.100}")

    def follow() -> None:
        sys.stdin.readline()
        sys.addaudithook(watch)
        watching.set()
        sys.stdin.readline()
        watching.clear()
        print(len(events), *events, flush=True)
        process.close()

    threading.Thread(target=follow, daemon=True).start()
    asyncio.run(server.run(lambda port: print(port, flush=True)))


def send(address: str, frame: bytes) -> str | bytes | None:
    """Send one frame; return the answer, or None where the connection was closed."""
    with connect(address, compression=None, proxy=None) as client:
        client.recv(60)
        client.send(frame)
        try:
            return client.recv(60 if frame[:1] != b"\x84" else 5)
        except (ConnectionClosed, TimeoutError):  # vla-eval's messages need no answer
            return None


def main(bundle: str, seed: int, count: int) -> None:
    """Fuzz a server and print what came of it."""
    import numpy as np

    command = [sys.executable, __file__, bundle]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as served:
        assert served.stdin is not None and served.stdout is not None
        address = f"ws://127.0.0.1:{int(served.stdout.readline())}"
        valid = pack({"obs": np.ones(6, np.float32), "noise": np.ones((4, 2), np.float32)})

        def asked() -> bytes:
            answer = send(address, valid)
            assert isinstance(answer, bytes), answer
            return bytes(unpack(answer)["actions"].tobytes())

        before = asked()
        for frame in hostile.STRUCTURED.values():  # what is imported at first use is there then
            send(address, frame)
        served.stdin.write("watch\n")
        served.stdin.flush()
        codes: dict[str, int] = {}
        for number, frame in enumerate(hostile.frames(seed, count)):
            answer = send(address, frame)
            code = answer.partition(":")[0] if isinstance(answer, str) else type(answer).__name__
            codes[code] = codes.get(code, 0) + 1
            assert "Traceback" not in str(answer)
            if number % BATCH == BATCH - 1:
                assert asked() == before
        assert asked() == before
        served.stdin.write("report\n")
        served.stdin.flush()
        print({"codes": codes, "events": served.stdout.readline().strip()})
        served.kill()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
