"""Transactions: results, dead letters and offsets of a batch are committed together or not at all.

Consumers see only committed records if they use ``isolation.level=read_committed``, the default of librdkafka.

One thread owns the transactional producer and runs one transaction at a time (:meth:`KafkaTransactions.run`). All
offsets of the group are committed this way, including those that record a crash marker, so no commit can overtake
another and move a partition back.

The transactional id identifies the slot of the worker (:func:`worker_slot`), not its process. A restarted worker uses
the same id, which aborts the open transaction of the killed process at once. The transaction timeout can therefore be
longer than an outage of a minute; it only matters if no worker uses the id again.

Either the outcome of a transaction is known, or the process ends: a commit that timed out is repeated by the same
producer, and after a fatal error the next process starts at the stable committed offsets.

After an outage of all brokers, a new producer is created before offsets are sent: the old one may wait forever for a
group coordinator that it has lost. Initialising the new one aborts the open transaction. The same is done when
``send_offsets_to_transaction`` does not return: a broker that was silent for some seconds is enough for it to wait
forever. The abandoned producer keeps its thread until that call returns; it is fenced, and its outcome is ignored.

Replaced producers are never destroyed: that corrupts memory if a call had not returned or timed out (librdkafka 2.16),
and the process is aborted. Each keeps about six threads, half a megabyte and its connections, so a process replaces a
limited number of them (:data:`MAX_REPLACED`).
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from nightjar_alerts.service.stream.addresses import Address
from nightjar_alerts.service.stream.kafka.assignment import Position
from nightjar_alerts.service.stream.kafka.client import GROUP, ClientErrors, make_client, properties
from nightjar_alerts.service.stream.kafka.sink import (
    PRODUCER_PROPERTIES,
    TopicProbe,
    access_error,
    delivery_timeout,
    produce_and_wait,
)
from nightjar_alerts.service.stream.messages import (
    DeliveryReport,
    FatalError,
    Record,
    TransientError,
)

log = structlog.get_logger(__name__)

TRANSACTIONAL_PROPERTIES: Final[Mapping[str, Any]] = {
    **PRODUCER_PROPERTIES,
    # Longer than an outage of a minute: a transaction that times out fences its own producer.
    "transaction.timeout.ms": 90_000,
}
# At most the transaction timeout. After the second one, a request to an unresponsive broker goes to its successor.
SHORTER_TIMEOUTS: Final[Mapping[str, int]] = {"message.timeout.ms": 75_000, "socket.timeout.ms": 15_000}
CALL_SECONDS: Final = 10.0
"""Timeout of one call of the client, in seconds; a call that times out is repeated."""
REPLACE_SECONDS: Final = 15.0
"""Seconds after which the producer is replaced if a call does not return although brokers respond.

``send_offsets_to_transaction`` ignores its timeout, and waits forever for a group coordinator that the client has lost
(librdkafka issues 5456 and 5511).
"""
HUNG_SECONDS: Final = 75.0
"""Seconds after which the process ends if new producers hang, too, although brokers respond."""
MAX_REPLACED: Final = 20
"""Producers that are replaced before the process ends, as each of them is kept: about one in an outage."""
LOST_SECONDS: Final = 75.0
"""Seconds of repeated timeouts of a call, although brokers respond, after which the process ends."""
CLOSE_SECONDS: Final = 5.0


def worker_slot(port: int, instance: str | None = None) -> str:
    """Return the name of a worker's slot, which is the same for every process with the same host and port.

    Parameters
    ----------
    port : TCP port of the worker's probes; with 0 (any free port) each process gets a new name.
    instance : ``group.instance.id`` of a static member, used as the name.
    """
    return instance or f"{socket.gethostname()}-{port or f'{os.getpid()}-{os.urandom(4).hex()}'}"


class Transaction(NamedTuple):
    """Content of a transaction.

    Attributes
    ----------
    records : records with their topics.
    positions : positions of the group to commit.
    membership : group metadata: member and generation; the coordinator rejects offsets of an earlier generation.
    on_committed : called on the transactions' thread after the commit, before the next transaction is prepared.
    """

    records: Sequence[tuple[str, Record]]
    positions: Sequence[Position]
    membership: object
    on_committed: Callable[[], None]


_Job = tuple[Callable[[], Transaction | None], Future[list[DeliveryReport]]]


class _Call(NamedTuple):
    """Running call of the client, with the times of its first and its latest attempt."""

    name: str
    since: float
    repeated_at: float


class _ReplacedError(Exception):
    """The producer of this thread was replaced while it did not return: the thread ends."""


class KafkaTransactions:
    """Transactional producer with the thread that owns it; a sink of results and, optionally, of dead letters.

    Parameters
    ----------
    group : consumer group whose offsets are committed.
    slot : name of the worker's slot, unique in the group.
    dead_letters : topic of dead letters; empty if they are not part of the transactions.
    """

    def __init__(
        self, address: Address, extra: Mapping[str, Any], group: str = GROUP, slot: str = "", dead_letters: str = ""
    ) -> None:
        own = {**TRANSACTIONAL_PROPERTIES, "transactional.id": f"nightjar-{group}-{slot or worker_slot(0)}"}
        longest = int(properties(address, extra, own)["transaction.timeout.ms"])
        own |= {name: min(timeout, longest) for name, timeout in SHORTER_TIMEOUTS.items()}
        self.client_errors = ClientErrors("sink")
        self._config = {**properties(address, extra, own), "error_cb": self.client_errors.record}
        self.topic, self.dead_letters = address.name, dead_letters
        self._producer = make_client(Producer, self._config)
        self._poll_lock = threading.Lock()
        topics = [topic for topic in (self.topic, dead_letters) if topic]
        self._topic_probe = TopicProbe(self._config, topics, self.client_errors)
        self._initialised, self._outages, self._replaced = False, 0, 0
        # Written by the owner, read by `check` on another thread, which may replace the owner during a call.
        self._call: _Call | None = None
        self._running: Future[list[DeliveryReport]] | None = None
        self._replacing = threading.Lock()
        self._hung_since: float | None = None  # since when no transaction could be committed, as calls did not return
        self._call_error, self._failure = "", ""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = self._start_owner()

    def _start_owner(self) -> threading.Thread:
        thread = threading.Thread(target=self._work, name="transactions", daemon=True)
        thread.start()
        return thread

    def run(self, prepare: Callable[[], Transaction | None]) -> "Future[list[DeliveryReport]]":
        """Schedule a transaction; its future returns the delivery report of each record.

        If a record is rejected, nothing was committed. The future raises TransientError if the transaction was aborted
        and may be retried, and FatalError if the process must end.

        Parameters
        ----------
        prepare : called on the owner's thread; returns None if there is nothing to commit.
        """
        future: Future[list[DeliveryReport]] = Future()
        if self._failure:
            future.set_exception(FatalError(self._failure))
        else:
            self._jobs.put((prepare, future))
        return future

    @property
    def failed(self) -> bool:
        """True after a fatal error: no further transaction starts, and the running one may never end."""
        return bool(self._failure)

    def publish(self, records: Sequence[Record]) -> list[DeliveryReport]:
        """Write records to the topic of results in a transaction without offsets."""
        numbered = [(self.topic, record) for record in records]
        return self.run(lambda: Transaction(numbered, (), None, lambda: None)).result()

    def check(self, responding_seconds: float) -> None:
        """Raise FatalError after a fatal error, or if a call does not return.

        Parameters
        ----------
        responding_seconds : time for which the brokers have responded to other clients; 0 during an outage.
        """
        if not self._failure:
            self._failure = self.client_errors.fatal or self._stuck_call(responding_seconds)
        if self._failure:
            raise FatalError(self._failure)

    def _stuck_call(self, responding_seconds: float) -> str:
        """Return an error if calls have failed for too long although brokers respond; empty otherwise.

        Replaces the producer if the running call hangs.
        """
        if self._replaced >= MAX_REPLACED:
            return f"Kafka transactions: {self._replaced} producers were replaced"
        if (call := self._call) is None:
            return ""
        now = monotonic()
        hung, lost = now - (self._hung_since or call.repeated_at), now - call.since
        if min(responding_seconds, hung) > HUNG_SECONDS:
            return f"Kafka transactions: {call.name} has not returned for {hung:.0f} s"
        if min(responding_seconds, lost) > LOST_SECONDS and not self.client_errors.refusal:
            return f"Kafka transactions: {call.name} has failed for {lost:.0f} s: {self._call_error}"
        if min(responding_seconds, now - call.repeated_at) > REPLACE_SECONDS and call.name != "commit_transaction":
            self._replace_producer(call)
        return ""

    def _replace_producer(self, call: _Call) -> None:
        """Abandon a producer whose call hangs; the transaction was not committed, and the next producer aborts it."""
        producer = make_client(Producer, self._config)
        with self._replacing:
            if self._call is not call:  # it has returned
                return
            self._call, self._hung_since = None, self._hung_since or call.repeated_at
            running, self._running = self._running, None
            self._keep_former()
            self._producer, self._initialised = producer, False
        log.warning("transactional producer replaced", call=call.name, seconds=round(monotonic() - call.repeated_at))
        if running is not None:
            running.set_exception(TransientError(f"{self.topic}: {call.name} does not return"))
        self._thread = self._start_owner()

    def _keep_former(self) -> None:
        """Keep the producer that is about to be replaced, also while the interpreter ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._producer))
        self._replaced += 1

    # On the owner's thread.

    def _work(self) -> None:
        try:
            try:
                self._initialise()  # at once, to abort the open transaction of a killed process
            except FatalError as error:
                self._failure = str(error)
            while (job := self._jobs.get()) is not None:
                self._run_job(*job)
        except _ReplacedError:
            pass

    def _run_job(self, prepare: Callable[[], Transaction | None], future: "Future[list[DeliveryReport]]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._running = future
        try:
            reports = self._execute(prepare)
        except _ReplacedError:
            raise
        except BaseException as error:
            if isinstance(error, FatalError):
                self._failure = str(error)
            future.set_exception(error)
        else:
            future.set_result(reports)
        self._running = None

    def _initialise(self) -> None:
        if self._had_outage():
            producer = make_client(Producer, self._config)
            self._keep_former()
            self._producer, self._initialised = producer, False
        if not self._initialised:
            self._outages = self.client_errors.outages
            self._repeat("init_transactions", CALL_SECONDS)
            self._initialised = True

    def _had_outage(self) -> bool:
        """Return whether all brokers were unreachable since the producer was initialised."""
        self._producer.poll(0)  # a client calls its error callback only while polled
        return self._initialised and self.client_errors.outages > self._outages

    def _execute(self, prepare: Callable[[], Transaction | None]) -> list[DeliveryReport]:
        self._initialise()
        transaction = prepare()
        if transaction is None:
            return []
        self._repeat("begin_transaction")
        timeout = delivery_timeout(self._config)
        reports = produce_and_wait(self._producer, transaction.records, timeout, self._poll_lock)
        self.client_errors.check()
        if self._had_outage():
            raise TransientError(f"{self.topic}: the brokers were unreachable")  # the next producer aborts it
        if any(report is not None for report in reports):
            transient = next((report for report in reports if isinstance(report, TransientError)), None)
            self._abort(str(transient or "a record was refused"))
            if transient is not None:
                raise transient
            return reports
        if transaction.positions:
            offsets = [position.to_kafka() for position in transaction.positions]
            self._repeat("send_offsets_to_transaction", offsets, transaction.membership, CALL_SECONDS)
        self._repeat("commit_transaction", CALL_SECONDS)
        self._hung_since = None
        transaction.on_committed()
        self.client_errors.record_response()
        return reports

    def _abort(self, reason: str) -> None:
        """Abort the running transaction. Raises FatalError if this fails; the next producer then aborts it."""
        try:
            self._repeat("abort_transaction", CALL_SECONDS)
        except FatalError as error:
            raise FatalError(f"{error} (aborting after: {reason})") from None

    def _repeat(self, name: str, *arguments: Any) -> None:
        """Call the producer until it succeeds or raises an error other than a timeout.

        Raises
        ------
        TransientError
            If the transaction was aborted.
        FatalError
            If the producer cannot recover, or the outcome of the transaction is unknown.
        """
        since, self._call_error = monotonic(), ""
        while (error := self._attempt(_Call(name, since, monotonic()), arguments)) is not None:
            self._call_error = error.str()
            if error.fatal():
                raise FatalError(f"Kafka transactions: {name}: {error.name()}: {error.str()}")
            if error.txn_requires_abort() and name != "abort_transaction":
                self._abort(error.str())
                raise TransientError(f"{self.topic}: {error.str()}")
            if not error.retriable():
                raise FatalError(f"Kafka transactions: {name}: {error.name()}: {error.str()}")

    def _attempt(self, call: _Call, arguments: tuple[Any, ...]) -> KafkaError | None:
        """Call the producer once; return its error, if any. Raises _ReplacedError."""
        self._call = call
        error: KafkaError | None = None
        try:
            getattr(self._producer, call.name)(*arguments)
        except KafkaException as raised:
            error = raised.args[0]
        finally:
            with self._replacing:
                replaced = self._call is not call
                self._call = self._call if replaced else None
        if replaced:
            raise _ReplacedError
        return error

    # As a sink.

    def check_access(self) -> str:
        """Return why the cluster rejects this client; empty if it accepts it, or does not respond."""
        return access_error(self._producer, self.topic, self.client_errors)

    @property
    def error(self) -> str:
        """Errors of the client since the last response of a broker, or missing topics; empty without."""
        self._topic_probe.start()
        call, now = self._call, monotonic()
        repeated = call is not None and now - call.since > CALL_SECONDS
        stuck = f"{self.topic}: {self._call_error or 'no answer'}" if repeated else ""
        return str(self.client_errors) or self._topic_probe.missing or stuck

    def close(self) -> None:
        """Stop the thread after the scheduled transactions; wait up to :data:`CLOSE_SECONDS` for it."""
        self._jobs.put(None)
        if not self.failed:
            self._thread.join(CLOSE_SECONDS)
