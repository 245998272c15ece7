"""A local server that speaks OpenAI's protocol for chats, with a scripted model behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tgrpo_dspy.testing import Call, completion


class ChatServer(ThreadingHTTPServer):
    """Answers by a function of the call.

    Attributes:
        calls: the calls it answered.
        temperatures: at which they were asked, in the same order.
        keys: the keys they came with.
        refused: how many requests it refused.
        status: with which it refuses every request; None: it answers.
    """

    daemon_threads = True

    def __init__(self, respond: Callable[[Call], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.respond = respond
        self.calls: list[Call] = []
        self.temperatures: list[float | None] = []
        self.keys: set[str] = set()
        self.refused = 0
        self.status: int | None = None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """What an LM is given as ``api_base``."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status is not None:
            with self.server.lock:
                self.server.refused += 1
            self._send(self.server.status, {"error": {"message": "out of order", "type": "server_error"}})
            return
        texts = {message["role"]: message["content"] for message in request["messages"]}
        system, user = texts.get("system", ""), texts["user"]
        with self.server.lock:
            call = Call(system, user, f"{system}\n{user}", len(self.server.calls), None)  # type: ignore[arg-type]
            self.server.calls.append(call)
            self.server.temperatures.append(request.get("temperature"))
            self.server.keys.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
        text = completion(self.server.respond(call), call.form)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": len(call.text) // 4, "completion_tokens": len(text) // 4}
        usage["total_tokens"] = sum(usage.values())
        self._send(
            200,
            {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}
            | {"model": request["model"]},
        )

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@contextmanager
def serving(respond: Callable[[Call], Any]) -> Iterator[ChatServer]:
    """A server, for the length of the block."""
    with ChatServer(respond) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
