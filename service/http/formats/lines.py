"""Cutting a body into lines as it arrives, with no more than one unfinished line in memory."""

from collections.abc import Iterator

from service.http.errors import TOO_LARGE, ProblemError


class Lines:
    """Lines of a stream of bytes, without their ends; blank ones are left out.

    Parameters
    ----------
    limit : most bytes in a line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.pending = 0  # bytes of the unfinished line

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that end in ``data``. Raises ProblemError (413) at the first that is too long."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start:end])
            yield from self.rest()
            start = end + 1
        self._hold(data[start:])

    def rest(self) -> Iterator[bytes]:
        """Yield what has come since the last end of a line, if anything: a stream may end without one."""
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self.pending = [], 0
        if line and not line.isspace():
            yield line

    def _hold(self, piece: bytes) -> None:
        self.pending += len(piece)
        if self.pending > self._limit:
            raise ProblemError(TOO_LARGE, f"a line is longer than {self._limit} bytes", limit=self._limit)
        self._pieces.append(piece)
