"""A TCP proxy between a client and a broker: lets through, cuts, falls silent, or lets through slowly."""

import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import Literal

from support.edge import HOST

Mode = Literal["open", "cut", "silent"]
_CHUNK = 65_536


class Proxy:
    """Listens on a port of its own and passes everything on to another.

    Attributes
    ----------
    mode : ``cut`` closes every connection and takes none; ``silent`` keeps them and passes nothing on.
    bytes_per_second : of each direction of each connection; None is as fast as it goes.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.mode: Mode = "open"
        self.bytes_per_second: float | None = None
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._closing = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        """Close every connection and take none."""
        self.mode = "cut"
        for pair in list(self._pairs):
            for one in pair:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "cut":
                near.close()
                continue
            try:
                far = socket.create_connection((HOST, self._target), timeout=5)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pass_on, args=(near, far), name="proxied", daemon=True).start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        self._pairs.add((near, far))
        other = {near: far, far: near}
        try:
            with selectors.DefaultSelector() as selector, near, far:
                for one in other:
                    selector.register(one, selectors.EVENT_READ)
                while not self._closing and self.mode != "cut":
                    ready = selector.select(0.1)
                    if self.mode == "silent":
                        time.sleep(0.02)
                        continue
                    for key, _ in ready:
                        source: socket.socket = key.fileobj  # type: ignore[assignment]  # what was registered
                        data = source.recv(_CHUNK)
                        if not data:
                            return
                        if self.bytes_per_second:
                            time.sleep(len(data) / self.bytes_per_second)
                        other[source].sendall(data)
        except OSError:
            return
        finally:
            self._pairs.discard((near, far))

    def close(self) -> None:
        """End."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
