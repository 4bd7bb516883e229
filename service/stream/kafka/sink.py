"""Records to Kafka, acknowledged by every in-sync replica, one by one or in transactions.

The producer is idempotent: its own retries never write a record twice. A worker that dies between the acknowledgement
and its commit publishes again; the record's key is then the same, so a compacted topic keeps one.

With a transactional producer (:class:`KafkaTransactions`) records, dead letters and offsets of a batch are committed
together or not at all. Readers see only what was committed if they ask for it: ``isolation.level=read_committed``,
librdkafka's default.

The transactional id is new for every process unless the address names one (``transactional.id``). It need not be stable
for correctness: the coordinator of the group refuses offsets from a former member (KIP-447), and with them the
transaction. What a killed process has left open is aborted after ``transaction.timeout.ms``; a named id, one for each
process, ends that wait at its restart.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from nightjar_alerts.service.stream.addresses import Address
from nightjar_alerts.service.stream.kafka.client import ClientErrors, is_transient, make_client, properties
from nightjar_alerts.service.stream.messages import PermanentError, Record, TransientError, is_shortened

Verdict = PermanentError | TransientError | None
VerdictCallback = Callable[[int, KafkaError | None], None]
PRODUCER_PROPERTIES: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "compression.type": "lz4",
    "message.timeout.ms": 30_000,
    "queue.buffering.max.kbytes": 65_536,
    # A dead letter is as large as a message that the source takes, and has headers besides; brokers may take less.
    "message.max.bytes": (4 << 20) + (64 << 10),
}
SLACK_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.1
"""Seconds that a producer is asked for verdicts at a time, unless some come before."""
LOCK_WAIT_SECONDS: Final = 0.005
"""Seconds after which a thread that waits for verdicts looks whether another one still polls."""
REFUSAL_SECONDS: Final = 3.0


class DefunctError(TransientError):
    """The producer failed for good, or got no answer in time and may have lost its brokers: a new one may work."""


class KafkaSink:
    """Sink that writes to one topic."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        self._topic = address.only().name
        self.client_errors = ClientErrors("sink")
        self._config = {**properties(address, extra, PRODUCER_PROPERTIES), "error_cb": self.client_errors.note}
        self._producer = make_client(Producer, self._config)
        self._poll_lock = threading.Lock()
        self._reconnect_probe = ReconnectProbe(self._config, self.client_errors, self._use_producer)

    def _use_producer(self, producer: Producer) -> None:
        """Go on with another producer; whoever waits for the former one's verdicts still gets them."""
        self._producer = producer

    def publish(self, records: Sequence[Record]) -> list[Verdict]:
        """Hand over and wait until each record is acknowledged, refused or too late."""
        verdicts = produce_and_wait(
            self._producer, self._topic, records, verdict_timeout(self._config), self._poll_lock
        )
        if any(isinstance(verdict, DefunctError) for verdict in verdicts):
            self._use_producer(Producer(self._config))
        if any(verdict is None for verdict in verdicts):
            self.client_errors.note_answer()
        return verdicts

    def refusal(self) -> str:
        """Return why the cluster lets us in nowhere, in words."""
        return refusal_of(self._producer, self._topic, self.client_errors)

    @property
    def trouble(self) -> str:
        """Errors of the client since a broker answered last."""
        self._reconnect_probe.start(self._producer, self._topic)
        return str(self.client_errors)

    def close(self) -> None:
        """Let go of the broker."""
        self._producer.flush(SLACK_SECONDS)


class ReconnectProbe:
    """Probe that asks, on a thread, whether brokers that were away are back: an idle producer never learns of it.

    A producer that has lost its brokers for ever (:meth:`service.stream.kafka.source.KafkaSource._check_client`) gets
    no answer even when they are back: a new one asks then, and takes its place if it is answered.

    Parameters
    ----------
    config : properties of the producer.
    use_producer : is given the producer that was answered.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        client_errors: ClientErrors,
        use_producer: Callable[[Producer], None] = lambda _: None,
    ) -> None:
        self._config, self._client_errors, self._use_producer = config, client_errors, use_producer
        self._asking = threading.Lock()

    def start(self, producer: Producer, topic: str) -> None:
        """Ask, without waiting, where brokers are away and nobody asks already."""
        if self._client_errors.away and self._asking.acquire(blocking=False):
            threading.Thread(target=self._ask, args=(producer, topic), name="sink", daemon=True).start()

    def _ask(self, producer: Producer, topic: str) -> None:
        try:
            if _answers(producer, topic):
                self._client_errors.note_answer()
            elif _answers(another := Producer(dict(self._config)), topic):
                self._use_producer(another)
                self._client_errors.note_answer()
        finally:
            self._asking.release()


def _answers(producer: Producer, topic: str) -> bool:
    """Return whether a broker answers; one that does not is asked again when somebody wants to know."""
    try:
        producer.list_topics(topic, REFUSAL_SECONDS)
    except KafkaException:
        return False
    return True


def refusal_of(producer: Producer, topic: str, client_errors: ClientErrors) -> str:
    """Return why a cluster lets us in nowhere, in words; empty when it does, or nobody answers."""
    end = monotonic() + REFUSAL_SECONDS
    while not client_errors.refusal and monotonic() < end:
        try:
            producer.list_topics(topic, 1.0)
        except KafkaException:
            producer.poll(0)  # lets the client say why
        else:
            break
    return client_errors.refusal


def verdict_timeout(config: Mapping[str, Any]) -> float:
    """Return seconds after which every record has been answered."""
    return float(config["message.timeout.ms"]) / 1000 + SLACK_SECONDS


def produce_and_wait(
    producer: Producer, topic: str, records: Sequence[Record], timeout: float, poll_lock: threading.Lock
) -> list[Verdict]:
    """Hand records over and wait for the verdict on each.

    Of several threads that wait, the one that holds ``poll_lock`` polls the producer for all of them. The producer
    hands a verdict to whichever thread polls: if all polled, one might go on polling for a verdict that another was
    given.
    """
    verdicts: list[Verdict] = [TransientError("no answer in time") for _ in records]
    unanswered, all_answered = set(range(len(records))), threading.Event()

    # Called in whichever thread polls; each statement is one step of the interpreter, so that no lock is needed.
    def on_verdict(number: int, error: KafkaError | None) -> None:
        verdicts[number] = None if error is None else verdict_of(error)
        unanswered.discard(number)
        if not unanswered:
            all_answered.set()

    for number, record in enumerate(records):
        if (refusal := _produce(producer, topic, (number, record), on_verdict, timeout)) is not None:
            verdicts[number] = refusal
            unanswered.discard(number)
    end = monotonic() + timeout
    while unanswered and monotonic() < end:
        if poll_lock.acquire(blocking=False):
            try:
                producer.poll(POLL_SECONDS)
            finally:
                poll_lock.release()
        else:
            all_answered.wait(LOCK_WAIT_SECONDS)
    return verdicts


def _produce(
    producer: Producer, topic: str, numbered: tuple[int, Record], on_verdict: VerdictCallback, timeout: float
) -> Verdict:
    """Hand over one record; what comes back at once is a refusal."""
    (number, record), end = numbered, monotonic() + timeout
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers),
                on_delivery=lambda error, _: on_verdict(number, error),
            )  # fmt: skip
        except BufferError:  # the queue is full, and a record leaves it only when its verdict is polled
            if monotonic() > end:
                return TransientError("the producer's queue is full")
            producer.poll(0.1)
        except KafkaException as error:
            return verdict_of(error.args[0])
        else:
            return None


def verdict_of(error: KafkaError) -> TransientError | PermanentError:
    """Return what an error of the broker or the client says about a record."""
    if error.fatal() or error.code() == KafkaError._MSG_TIMED_OUT:
        return DefunctError(error.str())
    return (TransientError if is_transient(error) else PermanentError)(error.str())


TRANSACTIONAL_PROPERTIES: Final[Mapping[str, Any]] = {
    **PRODUCER_PROPERTIES,
    "message.timeout.ms": 20_000,
    "transaction.timeout.ms": 30_000,  # what a killed process has left open keeps readers and the next owner waiting
}
CALL_SECONDS: Final = 30.0
OFFSETS_SECONDS: Final = 5.0
"""Seconds that the group's coordinator may take for the offsets at first; twice as long after each time it took longer.

librdkafka remembers who the coordinator is. Once it has let go of that broker, as it does when brokers are away, its
call never returns, whatever time it was given (issues 5456 and 5511). Another producer asks who the coordinator is.
"""
MAX_ABANDONED_CALLS: Final = 8
"""Number of calls that do not return and are left behind, each with its producer, before one is waited for."""


class KafkaTransactions:
    """One producer and its transactions, one after another.

    Every method raises TransientError when the cluster cannot do it now; the transaction must then be aborted. Not to
    be used from two threads at once.
    """

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        own = {**TRANSACTIONAL_PROPERTIES, "transactional.id": f"nightjar-{uuid.uuid4()}"}
        self.client_errors = ClientErrors("sink")
        self._config = {**properties(address, extra, own), "error_cb": self.client_errors.note}
        self._producer = make_client(Producer, self._config)
        self._poll_lock = threading.Lock()
        # Without a callback: :meth:`begin` takes another producer by itself.
        self._reconnect_probe = ReconnectProbe(self._config, self.client_errors)
        self._times_all_down = 0  # as counted when the producer worked last
        self._initialised = self._in_transaction = False  # known to the coordinator; with an open transaction
        self._offsets_seconds = OFFSETS_SECONDS
        self._abandoned_calls: list[_OffsetsCall] = []

    def begin(self) -> None:
        """Open a transaction; by another producer where all brokers went away since this one worked."""
        self._producer.poll(0)  # lets it report that brokers went away
        # It may wait for ever for a coordinator that it let go of meanwhile (see OFFSETS_SECONDS).
        if self._initialised and self.client_errors.times_all_down > self._times_all_down:
            self._initialised, self._producer = False, Producer(self._config)
        initialised, self._initialised = self._initialised, False  # until this has worked
        with self._translated():
            if not initialised:
                self._times_all_down = self.client_errors.times_all_down
                self._producer.init_transactions(CALL_SECONDS)
            self._producer.begin_transaction()
        self._initialised = self._in_transaction = True

    def publish(self, topic: str, records: Sequence[Record]) -> list[Verdict]:
        """Add records; returns None for each, or its final refusal. Raises TransientError for any other refusal.

        A refusal by the broker, not by the client, spoils the transaction: its commit will fail.
        """
        verdicts = produce_and_wait(self._producer, topic, records, verdict_timeout(self._config), self._poll_lock)
        for verdict in verdicts:
            if isinstance(verdict, TransientError):
                # Records that were given up leave a gap in the producer's sequence, which it mends in its own time and
                # at the cost of later transactions; another producer begins at once, and ends what this one left open.
                self._initialised = False
                raise verdict
        return verdicts

    def commit(self, positions: list[TopicPartition], group: object) -> None:
        """Commit the transaction, and with it where the group is to read on.

        A TransientError leaves open what has become of it: :meth:`begin` of the next one settles that.
        """
        with self._translated():
            self._send_offsets(positions, group)
            self._end_transaction()
        self._in_transaction = False
        self._times_all_down = self.client_errors.times_all_down
        self.client_errors.note_answer()

    def _send_offsets(self, positions: list[TopicPartition], group: object) -> None:
        """Add where the group is to read on; a call that does not return is left behind with its producer."""
        call = _OffsetsCall(self._producer, positions, group)
        self._abandoned_calls = [one for one in self._abandoned_calls if not one.ended.is_set()]
        if not call.ended.wait(None if len(self._abandoned_calls) >= MAX_ABANDONED_CALLS else self._offsets_seconds):
            self._abandoned_calls.append(call)
            self._initialised = False
            self._offsets_seconds = min(CALL_SECONDS, 2 * self._offsets_seconds)
            raise TransientError("no answer of the group's coordinator")
        if call.error is not None:
            raise call.error
        self._offsets_seconds = OFFSETS_SECONDS

    def _end_transaction(self) -> None:
        """Commit; a call that takes too long is repeated, as the transaction is neither committed nor aborted yet."""
        end = monotonic() + 2 * CALL_SECONDS
        while True:
            try:
                self._producer.commit_transaction(CALL_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or monotonic() > end:
                    self._initialised = self._initialised and bool(error.args[0].txn_requires_abort())
                    raise
            else:
                return

    def abort(self) -> None:
        """Abort what is open; after an error that no abort mends, the next transaction is another producer's."""
        try:
            if self._in_transaction and self._initialised:
                self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException:
            self._initialised = False
        if not self._initialised:
            self._producer = Producer(self._config)
        self._in_transaction = False

    def refusal(self, topic: str) -> str:
        """Return why the cluster lets us in nowhere, in words."""
        return refusal_of(self._producer, topic, self.client_errors)

    def trouble(self, topic: str) -> str:
        """Errors of the client since a broker answered last."""
        self._reconnect_probe.start(self._producer, topic)
        return str(self.client_errors)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            self._initialised = self._initialised and not cause.fatal()
            raise TransientError(cause.str()) from error

    def close(self) -> None:
        """Abort what is open."""
        with suppress(KafkaException):
            if self._in_transaction and self._initialised:
                self._producer.abort_transaction(CALL_SECONDS)


class _OffsetsCall:
    """One call of librdkafka's that may never return, on a thread of its own.

    Attributes
    ----------
    ended : is set when it has returned.
    error : what it raised.
    """

    def __init__(self, producer: Producer, positions: list[TopicPartition], group: object) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None

        def ask() -> None:
            try:
                producer.send_offsets_to_transaction(positions, group, CALL_SECONDS)
            except Exception as error:  # raised again by who asked
                self.error = error
            finally:
                self.ended.set()

        # A daemon: a call that never returns must not keep the process from ending.
        threading.Thread(target=ask, name="offsets", daemon=True).start()


class ResultTopic:
    """Sink whose records belong to the transaction.

    A record that the broker refuses for good is remembered, and left out when the same batch is tried again.
    """

    def __init__(self, transactions: KafkaTransactions, topic: str) -> None:
        self._transactions, self._topic = transactions, topic
        self._refusals: dict[Record, PermanentError] = {}

    def publish(self, records: Sequence[Record]) -> list[Verdict]:
        """Add records to the transaction. Raises TransientError when it must be aborted."""
        self._refusals = {record: self._refusals[record] for record in records if record in self._refusals}
        fresh = [record for record in records if record not in self._refusals]
        verdicts = self._transactions.publish(self._topic, fresh)
        self._refusals |= {
            record: verdict
            for record, verdict in zip(fresh, verdicts, strict=True)
            if isinstance(verdict, PermanentError)
        }
        return [self._refusals.get(record) for record in records]

    def refusal(self) -> str:
        """Return why the cluster lets us in nowhere, in words."""
        return self._transactions.refusal(self._topic)

    @property
    def trouble(self) -> str:
        """Errors of the client since a broker answered last."""
        return self._transactions.trouble(self._topic)

    def close(self) -> None:
        """End; what is open is aborted."""
        self._transactions.close()


class DeadLetterTopic:
    """Dead letters that belong to the transaction. A refused one spoils it and is not tried whole in the next."""

    def __init__(self, transactions: KafkaTransactions, topic: str) -> None:
        self._transactions, self._topic = transactions, topic
        self._large_keys: set[bytes] = set()  # of dead letters that do not fit into the topic whole
        self.trouble = ""

    def refusal(self) -> str:
        """Return nothing: the results' topic tells."""
        return ""

    def publish(self, records: Sequence[Record]) -> list[Verdict]:
        """Add dead letters to the transaction; those too large before are refused, so that they are shortened.

        Raises TransientError when the transaction must be aborted.
        """
        self._large_keys &= {record.key for record in records}
        refuse_again = [record.key in self._large_keys and not is_shortened(record) for record in records]
        fitting = [record for record, refuse in zip(records, refuse_again, strict=True) if not refuse]
        verdicts = self._transactions.publish(self._topic, fitting) if fitting else []
        refusal_by_key = {
            record.key: verdict for record, verdict in zip(fitting, verdicts, strict=True) if verdict is not None
        }
        if refusal_by_key:
            self._large_keys |= refusal_by_key.keys()
            raise TransientError(f"dead letters: {next(iter(refusal_by_key.values()))}")
        return [PermanentError("too large for its topic") if refuse else None for refuse in refuse_again]

    def close(self) -> None:
        """Do nothing: the results' topic ends the transactions."""
