"""Commits of offsets and crash markers, in one of two ways: by the consumer, or in transactions alone.

Both send one commit at a time and wait for none. The broker's response arrives while the consumer is polled, or on the
transactions' thread. A commit holds the latest positions, so that after an outage one commit is enough.

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
"""Seconds between two commits, unless one is waited for. What is processed in between is repeated after a kill."""
MAX_UNCOMMITTED: Final = 256
"""Maximum number of messages that are processed and not committed: as many may be published twice after a kill.

Once half of the window is used a commit is sent at once, so that work goes on in the other half until it is confirmed.
"""
LATE_SECONDS: Final = 0.25
"""Duration from which a commit counts as late.

A broker serves one request of a connection at a time. It confirms no commit of a member that has rejoined its group
until the group is complete, which takes a session timeout if a member was killed.
"""
UNANSWERED_SECONDS: Final = 75.0
"""Seconds without a response to a commit, while brokers respond to other clients, after which the process ends."""
RETRY_SECONDS: Final = 0.25


class Commits(Protocol):
    """Commits of a consumer. For its thread alone."""

    @property
    def in_flight(self) -> bool:
        """True while a commit has been sent and not been confirmed."""

    @property
    def window(self) -> int | None:
        """Number of messages that may be processed before anything is committed; None without a bound."""

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit where one is due and none is in flight.

        Parameters
        ----------
        awaited : partitions whose messages wait for their crash marker.
        """

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up.

        Parameters
        ----------
        clean : True for an orderly stop: no crash marker remains. False if an unfinished message may have ended the
            worker.
        timeout : seconds to wait for the running transaction.
        """

    def check(self, answering_seconds: float) -> None:
        """Raise FatalError where only a new process helps.

        Parameters
        ----------
        answering_seconds : time for which the brokers have responded to other clients.
        """


def _final(assignment: Assignment, partitions: Iterable[Partition], clean: bool) -> list[Position]:
    positions = assignment.positions(partitions)
    return [position._replace(marker=None) for position in positions] if clean else positions


class ConsumerCommits:
    """Commits of the consumer itself, many times a second.

    The window starts at :data:`PART_MESSAGES`. It doubles with each commit that was sent when half of it was used and
    was confirmed in time, and is reset by any other: messages processed while no commit succeeds are repeated after a
    kill.

    Attributes
    ----------
    consumer : sends them; set once it is made, with :meth:`on_commit` as its callback.
    """

    def __init__(self, assignment: Assignment, client_errors: ClientErrors) -> None:
        self._assignment, self._client_errors = assignment, client_errors
        self.consumer: Consumer | None = None
        self._sent: dict[Partition, Position] = {}
        self._sent_at = self._next_at = 0.0
        self._window = PART_MESSAGES
        self._half_full = False  # whether the window was when the last commit was sent

    @property
    def in_flight(self) -> bool:
        """True while a commit has been sent and not been confirmed."""
        return bool(self._sent)

    @property
    def window(self) -> int:
        """Number of messages that may be processed before anything is committed. For any thread."""
        late = bool(self._sent) and self._waited >= LATE_SECONDS
        window = PART_MESSAGES if late else self._window
        # Messages that are done before an earlier one, which waits for something outside, cannot be committed.
        return min(window - self._assignment.unacknowledged(), MAX_UNCOMMITTED - self._assignment.uncommitted())

    @property
    def _waited(self) -> float:
        """Seconds since the last commit was sent."""
        return monotonic() - self._sent_at

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit of all partitions where one is due and none is in flight."""
        now = monotonic()
        if self._sent:
            return
        self._half_full = self._assignment.unacknowledged() >= self._window // 2
        if awaited or now >= self._next_at or self._half_full:
            self._next_at = now + COMMIT_SECONDS
            self._send(self._assignment.moved(self._assignment.partitions))

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
            self._client_errors.note_answer()
            acknowledged = [(str(one.topic), one.partition) for one in positions if one.error is None]
            self._assignment.note_acknowledged(self._sent[one] for one in acknowledged if one in self._sent)
        self._sent = {}

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up; does not wait."""
        self._send(_final(self._assignment, partitions, clean))

    def check(self, answering_seconds: float) -> None:
        """Raise FatalError if the broker does not respond to a commit."""
        if self._sent and min(answering_seconds, self._waited) > UNANSWERED_SECONDS:
            raise FatalError(f"Kafka source: no answer to a commit for {self._waited:.0f} s")


class TransactionCommits:
    """Commits in transactions without records, in addition to those of the batches, which commit their own offsets.

    They are needed only for messages that wait for their crash marker, and for messages that were skipped.

    Parameters
    ----------
    membership : returns the membership of the group; raises TransientError while there is none.
    jobs : queue of the consumer's thread.
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
        self._unanswered = False
        self._next_at = 0.0

    @property
    def in_flight(self) -> bool:
        """True while a commit has been sent whose response may still arrive."""
        return self._unanswered and not self._transactions.failed

    def send(self, awaited: Collection[Partition]) -> None:
        """Send a commit of these partitions where they have moved and none is in flight."""
        if self._unanswered or monotonic() < self._next_at or not self._assignment.moved(awaited):
            return
        self._unanswered = True
        done = self._run(lambda: self._assignment.moved(awaited))
        done.add_done_callback(lambda done: self._jobs.put(partial(self._on_done, done)))

    def _on_done(self, done: "Future[Any]") -> None:
        self._unanswered = False
        if done.exception() is not None:  # aborted; a fatal error is raised by `check`
            self._next_at = monotonic() + RETRY_SECONDS

    def _run(self, positions: Callable[[], Sequence[Position]]) -> "Future[Any]":
        def prepare() -> Transaction | None:
            membership = self._membership()
            chosen = positions()
            acknowledge = partial(self._jobs.put, partial(self._assignment.note_acknowledged, chosen))
            return Transaction((), chosen, membership, acknowledge) if chosen else None

        return self._transactions.run(prepare)

    def send_final(self, partitions: Sequence[Partition], clean: bool, timeout: float) -> None:
        """Commit partitions that this member gives up; waits for the running transaction."""
        done = self._run(lambda: _final(self._assignment, partitions, clean))
        try:
            done.result(timeout)
        except (TransientError, FatalError, TimeoutError) as error:
            # One that has not begun must not run later. One that has begun is refused once the generation is over.
            done.cancel()
            log.warning("final commit failed", reason=str(error) or "no answer in time")

    def check(self, answering_seconds: float) -> None:
        """Raise FatalError where the transactions can do nothing more."""
        self._transactions.check(answering_seconds)
