"""Commits of offsets and crash markers, either by the consumer or in transactions.

Both send one commit at a time without waiting for it. The response arrives while the consumer is polled, or on the
transactions' thread. A commit contains the latest positions, so that one commit is enough after an outage.

In this module, a message is *processed* once its results or dead letter have been published.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from nightjar_alerts.service.stream.kafka.assignment import Assignment, Partition, Position
from nightjar_alerts.service.stream.kafka.client import ClientErrors
from nightjar_alerts.service.stream.kafka.transactions import KafkaTransactions, Transaction
from nightjar_alerts.service.stream.messages import PART_MESSAGES, FatalError, TransientError

log = structlog.get_logger(__name__)

COMMIT_SECONDS: Final = 0.05
"""Interval between two commits in seconds, unless a message waits for one."""
MAX_UNCOMMITTED: Final = 256
"""Maximum number of processed but uncommitted messages, which may be published twice after a kill.

Once half of the window is used, a commit is sent at once, so that work continues in the other half until it is
acknowledged.
"""
LATE_SECONDS: Final = 0.25
"""Seconds after which a commit counts as late.

A broker serves one request of a connection at a time. It does not respond to a commit of a member that has rejoined its
group until the group is complete, which takes a session timeout if a member was killed.
"""
UNANSWERED_SECONDS: Final = 75.0
"""Seconds without a response to a commit, while brokers respond to other clients, after which the process ends."""
RETRY_SECONDS: Final = 0.25


class Commits(Protocol):
    """Commits of a consumer; used on its thread only, except ``window``."""

    @property
    def in_flight(self) -> bool:
        """True while a commit was sent but not acknowledged."""

    @property
    def window(self) -> int | None:
        """Number of messages that may be processed before the next commit; None for any number."""

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit if one is due and none is in flight.

        Parameters
        ----------
        awaited : partitions whose messages wait for their crash marker.
        """

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up.

        Parameters
        ----------
        clean : True for a graceful stop: the marker says that the partition was given back. False if an unfinished
            message may have caused the stop.
        timeout : seconds to wait for the running transaction.
        """

    def check(self, responding_seconds: float) -> None:
        """Raise FatalError if commits cannot recover in this process.

        Parameters
        ----------
        responding_seconds : time for which the brokers have responded to other clients.
        """


def _final(assignment: Assignment, partitions: Iterable[Partition], clean: bool) -> list[Position]:
    positions = assignment.positions(partitions)
    return [position.given_back for position in positions] if clean else positions


class ConsumerCommits:
    """Commits by the consumer, many times a second.

    The window starts at :data:`PART_MESSAGES`. It doubles with each commit that was sent when half of it was used and
    was acknowledged in time; any other commit resets it, since messages processed without commits are repeated after a
    kill.

    Attributes
    ----------
    consumer : consumer that sends the commits; must be created with :meth:`on_commit` as its callback.
    """

    def __init__(self, assignment: Assignment, client_errors: ClientErrors) -> None:
        self._assignment, self._client_errors = assignment, client_errors
        self.consumer: Consumer | None = None
        self._sent: dict[Partition, Position] = {}
        self._sent_at = self._next_at = 0.0
        self._window = PART_MESSAGES
        self._half_full = False  # whether half of the window was used when the last commit was sent

    @property
    def in_flight(self) -> bool:
        """True while a commit was sent but not acknowledged."""
        return bool(self._sent)

    @property
    def window(self) -> int:
        """Number of messages that may be processed before the next commit. May be read on any thread."""
        late = bool(self._sent) and self._waited >= LATE_SECONDS
        window = PART_MESSAGES if late else self._window
        # The second term: messages that are done before an earlier one cannot be committed yet.
        return min(window - self._assignment.unacknowledged(), MAX_UNCOMMITTED - self._assignment.uncommitted())

    @property
    def _waited(self) -> float:
        """Seconds since the last commit was sent."""
        return monotonic() - self._sent_at

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit of all partitions if one is due and none is in flight."""
        now = monotonic()
        if self._sent:
            return
        self._half_full = self._assignment.unacknowledged() >= self._window // 2
        if awaited or now >= self._next_at or self._half_full:
            self._next_at = now + COMMIT_SECONDS
            self._send(self._assignment.changed_positions(self._assignment.partitions))

    def _send(self, positions: Sequence[Position]) -> None:
        if not positions or self.consumer is None:
            return
        self._sent_at, self._sent = monotonic(), {position.partition: position for position in positions}
        try:
            self.consumer.commit(offsets=[position.to_kafka() for position in positions], asynchronous=True)
        except KafkaException:
            self._sent = {}

    def on_commit(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        """Record the outcome of a commit."""
        in_time = self._half_full and self._waited < LATE_SECONDS
        self._window = min(2 * self._window, MAX_UNCOMMITTED) if in_time else PART_MESSAGES
        if error is None:
            self._client_errors.record_response()
            partitions = [(str(position.topic), position.partition) for position in positions if position.error is None]
            self._assignment.record_acknowledged(
                self._sent[partition] for partition in partitions if partition in self._sent
            )
        self._sent = {}

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up; does not wait."""
        self._send(_final(self._assignment, partitions, clean))

    def check(self, responding_seconds: float) -> None:
        """Raise FatalError if the broker does not respond to a commit."""
        if self._sent and min(responding_seconds, self._waited) > UNANSWERED_SECONDS:
            raise FatalError(f"Kafka source: no answer to a commit for {self._waited:.0f} s")


class TransactionCommits:
    """Commits in transactions without records, in addition to the transactions of batches.

    They are needed only for messages that wait for their crash marker, and for messages that were skipped.

    Parameters
    ----------
    membership : returns the group metadata; raises TransientError if the consumer is not a member.
    jobs : job queue of the consumer's thread.
    """

    def __init__(
        self,
        assignment: Assignment,
        transactions: KafkaTransactions,
        membership: Callable[[], object],
        jobs: "SimpleQueue[Callable[[], None]]",
    ) -> None:
        self._assignment, self._transactions = assignment, transactions
        self._membership, self._jobs = membership, jobs
        self.window = None
        self._pending = False
        self._next_at = 0.0

    @property
    def in_flight(self) -> bool:
        """True while the response to a commit may still arrive."""
        return self._pending and not self._transactions.failed

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit of these partitions if their positions have changed and none is in flight."""
        if self._pending or monotonic() < self._next_at or not self._assignment.changed_positions(awaited):
            return
        self._pending = True
        done = self._run(lambda: self._assignment.changed_positions(awaited))
        done.add_done_callback(lambda done: self._jobs.put(partial(self._on_done, done)))

    def _on_done(self, done: "Future[Any]") -> None:
        self._pending = False
        if done.exception() is not None:  # aborted; a fatal error is raised by `check`
            self._next_at = monotonic() + RETRY_SECONDS

    def _run(self, positions: Callable[[], Sequence[Position]]) -> "Future[Any]":
        def prepare() -> Transaction | None:
            membership = self._membership()
            chosen = positions()
            acknowledge = partial(self._jobs.put, partial(self._assignment.record_acknowledged, chosen))
            return Transaction((), chosen, membership, acknowledge) if chosen else None

        return self._transactions.run(prepare)

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up; waits for the running transaction."""
        done = self._run(lambda: _final(self._assignment, partitions, clean))
        try:
            done.result(timeout)
        except (TransientError, FatalError, TimeoutError) as error:
            # A scheduled transaction must not run later; a running one is rejected after the generation ends.
            done.cancel()
            log.warning("final commit failed", reason=str(error) or "no answer in time")

    def check(self, responding_seconds: float) -> None:
        """Raise FatalError if the transactions cannot continue."""
        self._transactions.check(responding_seconds)
