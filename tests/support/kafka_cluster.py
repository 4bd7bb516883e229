"""A Kafka cluster in this process: the mock brokers inside librdkafka, driven through its C interface.

They speak Kafka's protocol over TCP, so clients of any process may connect. What they lack: creating topics by an
admin client, persistence, and the effect of transactions: they answer every request of one, but show aborted records
to all readers and keep no offsets.
"""

import ctypes
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import files
from typing import Any

import pytest

confluent_kafka = pytest.importorskip(
    "confluent_kafka", reason="confluent_kafka is missing: pip install 'nightjar-alerts[stream]'"
)

PRODUCE, OFFSET_COMMIT, OFFSET_FETCH, LEAVE_GROUP, INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = (
    0,
    8,
    9,
    13,
    22,
    25,
    26,
    28,
)
"""Kinds of requests, by Kafka's numbers."""
_PRODUCER = 0
_TEXT_BYTES = 512


def _library() -> ctypes.CDLL:
    """The librdkafka that the client library brings along."""
    names = [file for file in files("confluent-kafka") or () if "librdkafka" in file.name and ".so" in file.name]
    library = ctypes.CDLL(str(names[0].locate()))
    for name in (
        "rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new", "rd_kafka_mock_get_requests",
    ):  # fmt: skip
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class KafkaCluster:
    """Brokers, topics, and what may befall them."""

    def __init__(self, brokers: int = 1) -> None:
        self._lib = _library()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = ctypes.c_void_p(self._lib.rd_kafka_conf_new())
        self._handle = ctypes.c_void_p(self._lib.rd_kafka_new(_PRODUCER, conf, text, ctypes.c_size_t(_TEXT_BYTES)))
        self._cluster = ctypes.c_void_p(self._lib.rd_kafka_mock_cluster_new(self._handle, brokers))
        self._lib.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, ctypes.c_int32(0))
        self.hosts: str = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def close(self) -> None:
        with self._awake():
            self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._handle)

    def create(self, topic: str, partitions: int = 1) -> None:
        with self._awake():
            assert self._lib.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def set_down(self, broker: int = 1) -> None:
        with self._awake():
            assert self._lib.rd_kafka_mock_broker_set_down(self._cluster, ctypes.c_int32(broker)) == 0

    def set_up(self, broker: int = 1) -> None:
        with self._awake():
            assert self._lib.rd_kafka_mock_broker_set_up(self._cluster, ctypes.c_int32(broker)) == 0

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        arguments = self._cluster, topic.encode(), ctypes.c_int32(partition), ctypes.c_int32(broker)
        with self._awake():
            assert self._lib.rd_kafka_mock_partition_set_leader(*arguments) == 0

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Connect to the brokers again and again: without events, their thread may notice a call a second later."""
        done = threading.Event()

        def connect() -> None:
            while not done.wait(0.01):
                for host in self.hosts.split(","):
                    with suppress(OSError):
                        socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2])), 1).close()

        thread = threading.Thread(target=connect)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def fail_next(self, request: int, *errors: int) -> None:
        """Answer the next requests of a kind with errors."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self._lib.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(len(errors)), codes
        )

    def watch(self) -> None:
        """Begin to note what is asked of the brokers."""
        self._lib.rd_kafka_mock_start_request_tracking(self._cluster)

    def request_counts(self) -> Counter[int]:
        """Count how often each kind of request has come since :meth:`watch`."""
        count = ctypes.c_size_t()
        array = self._lib.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        requests = (ctypes.c_void_p * count.value).from_address(array) if count.value else ()
        kinds = Counter(int(self._lib.rd_kafka_mock_request_api_key(ctypes.c_void_p(one))) for one in requests)
        self._lib.rd_kafka_mock_request_destroy_array(ctypes.c_void_p(array), count)
        return kinds

    def produce(
        self,
        topic: str,
        values: list[bytes],
        keys: list[bytes] | None = None,
        partition: int | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": self.hosts, "log_level": 0, "linger.ms": 0})
        for number, value in enumerate(values):
            where: dict[str, Any] = {} if partition is None else {"partition": partition}
            producer.produce(topic, value, keys[number] if keys else None, headers=headers, **where)
        assert producer.flush(20) == 0

    def length(self, topic: str) -> int:
        """Messages in a topic."""
        config = {"bootstrap.servers": self.hosts, "group.id": "reader", "log_level": 0}
        consumer = confluent_kafka.Consumer(config)
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            places = [confluent_kafka.TopicPartition(topic, number) for number in partitions]
            return sum(consumer.get_watermark_offsets(place, 10)[1] for place in places)
        finally:
            consumer.close()

    def read(self, topic: str, expected: int, timeout: float = 20.0) -> list[Any]:
        """The messages of a topic; waits until there are as many as expected."""
        config = {"bootstrap.servers": self.hosts, "group.id": "reader", "log_level": 0}
        consumer = confluent_kafka.Consumer(config)
        all_messages: list[Any] = []
        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
            with suppress(TimeoutError):
                all_messages += _until(consumer, expected, timeout)
            all_messages += [message for message in consumer.consume(100_000, 0.3) if message.error() is None]
        finally:
            consumer.close()
        return all_messages

    @contextmanager
    def following(self, topic: str) -> Iterator[Callable[[], list[Any]]]:
        """Yield a function that returns a topic's messages so far; ask often, as the mock keeps 5 MB of a partition."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.hosts, "group.id": "follower", "log_level": 0})
        all_messages: list[Any] = []

        def so_far() -> list[Any]:
            while messages := consumer.consume(1000, 0.3):
                all_messages.extend(message for message in messages if message.error() is None)
            return all_messages

        try:
            partitions = consumer.list_topics(topic, 10).topics[topic].partitions
            consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
            yield so_far
        finally:
            consumer.close()


def _until(consumer: Any, expected: int, timeout: float) -> list[Any]:
    import time

    all_messages: list[Any] = []
    end = time.monotonic() + timeout
    while len(all_messages) < expected and time.monotonic() < end:
        all_messages += [message for message in consumer.consume(1000, 0.1) if message.error() is None]
    return all_messages


@contextmanager
def kafka_cluster(brokers: int = 1) -> Iterator[KafkaCluster]:
    """A cluster for a while."""
    cluster = KafkaCluster(brokers)
    try:
        yield cluster
    finally:
        cluster.close()


class LostClient:
    """A consumer that knows no broker any more (librdkafka 5301): it has nothing, and answers no question."""

    def __init__(self, config: object) -> None: ...

    def subscribe(self, *_: object, **callbacks: object) -> None: ...

    def list_topics(self, *_: object) -> None:
        raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(confluent_kafka.KafkaError._TRANSPORT))

    def consume(self, count: int, timeout: float) -> list[object]:
        time.sleep(timeout)
        return []

    def poll(self, timeout: float) -> None:
        time.sleep(timeout)

    def pause(self, partitions: list[object]) -> None:
        assert not partitions

    resume = pause

    def close(self) -> None: ...
