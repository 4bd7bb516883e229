"""Alerts from Kafka, by a consumer group; and messages of its topics for a replay.

One thread owns the consumer, that of ``poll``, ``rest`` and ``close``: it alone takes, pauses, commits and answers the
group's callbacks. The client lets one thread in at a time and is fair to none: whoever else calls it waits until the
owner happens to be outside, which may be seconds. So everybody else hands the owner work (:meth:`KafkaSource.done`),
reads what it noted last (:meth:`KafkaSource.claim`) or asks by another client (:meth:`KafkaSource.committed`). The
owner waits for nobody, except at a revocation, for :data:`REVOKE_SECONDS` at most, for what is about to be done. What
is not done by then is the next owner's, and nothing that is published later can be ours by mistake
(:meth:`KafkaSource.holds`).

A client of librdkafka's can lose all its brokers for ever. Where nothing is ours the owner therefore asks by the client
that takes the alerts whether it still knows one, and takes another client where it does not although the brokers answer
the watch (:meth:`KafkaSource._look_at_client`).

What is paused follows from how many messages lie in the hand, between the client's queue and the worker, and is said
again for every partition that comes.

In transactions the producer commits the offsets, as :meth:`KafkaSource.claim` says, and the consumer the journal alone.

:class:`KafkaRange` is the source of a replay: messages between two offsets or two moments. Nothing is committed and no
group is joined, so a replay disturbs nobody. It ends where the topic ended when it began.
"""

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, NamedTuple, cast

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from service.stream.addresses import Address, AddressError
from service.stream.kafka import commits
from service.stream.kafka.client import GROUP, Complaints, Watch, asking, made, properties
from service.stream.kafka.commits import Apart, Commits
from service.stream.kafka.hand import Hand, message_of, offset_of, partition_of
from service.stream.kafka.offsets import Latest, Offsets, Partition, Token
from service.stream.messages import PIECE, FiniteSource, Message, Standing, TransientError

log = structlog.get_logger(__name__)

REVOKE_SECONDS: Final = 1.0
COMMITTED_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
REFUSAL_SECONDS: Final = 5.0
SLICE_SECONDS: Final = 0.05
"""Seconds that the consumer is waited for before other work is looked at; commits and journals come by this way."""
HURRY_SECONDS: Final = 0.005
"""That time while messages in the hand wait for an answer of the broker."""
FULL_SECONDS: Final = 0.5
"""Seconds that the hand is full before partitions are paused; until then it grows by one message for each look."""
LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the client of a member without partitions."""
ANSWER_SECONDS: Final = 2.0
"""Seconds that a broker has to answer it then; it may be waiting for messages for as long as ``fetch.wait.max.ms``."""
MOST_UNANSWERED: Final = 2
"""Looks in a row without an answer, while brokers answer the watch, after which another client is taken."""
MAX_DELIVERIES: Final = 5
OWN: Final[Mapping[str, Any]] = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "partition.assignment.strategy": "cooperative-sticky",
    "queued.max.messages.kbytes": 32768,  # all partitions together: what waits in memory, whatever the lag
    "fetch.message.max.bytes": 4 << 20,
    "max.poll.interval.ms": 300_000,
    "enable.partition.eof": False,
    "topic.metadata.refresh.interval.ms": 30_000,  # a nightly topic begins to exist while we wait for it
    "allow.auto.create.topics": False,
}
FIXED: Final = ("enable.auto.commit", "enable.auto.offset.store", "partition.assignment.strategy")
"""Settings that the promise to lose nothing rests on."""
_NO_GENERATION: Final = -1


class Claim(NamedTuple):
    """Messages that a transaction may hold and commit.

    Attributes
    ----------
    owned : messages whose partitions are still this member's.
    positions : where those partitions are to be read on from.
    group : the member and its generation; the broker refuses a commit in the name of a former one.
    """

    owned: frozenset[Token]
    positions: list[TopicPartition]
    group: object


class KafkaSource:
    """A member of a consumer group.

    Parameters
    ----------
    extra : properties from the settings' file.
    transactional : whether a producer commits the offsets.
    max_deliveries : deliveries that a message may have had; the journal counts them.
    rebalanced : is told the seconds for which each change of the assignment kept the worker from taking anything.
    """

    finite = False

    def __init__(
        self,
        address: Address,
        extra: Mapping[str, Any],
        transactional: bool = False,
        max_deliveries: int = MAX_DELIVERIES,
        rebalanced: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        group = address.only("group").options.get("group", GROUP)
        config = properties(address, extra, {**OWN, "group.id": group})
        config |= {name: OWN[name] for name in FIXED}
        if transactional:  # committed offsets are read only after the transaction that is about to move them
            config |= {"isolation.level": "read_committed"}
        self._rebalanced, self._names = rebalanced, address.names
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._dry = False  # whether the client had nothing when it was asked last
        self._paused: set[Partition] = set()
        self._full_since: float | None = None
        self._latest = Latest() if transactional else None
        self._jumped: set[Partition] = set()  # partitions of which messages were answered before they came again
        self._offsets = Offsets(committed_with=transactional)
        self._apart = Apart() if transactional else None
        self._leaving = False
        self._group: object = None  # our membership as the owner noted it last, for transactions
        self._commits = Commits(self._offsets, max_deliveries, self._apart)
        self._hand = Hand(self._offsets, self._commits)
        self.complaints = Complaints("source")
        self._config, self._clients = {**config, "error_cb": self.complaints.note}, 0
        self._consumer = self._begin_client()
        self._asks = asking(config, self.complaints)
        self._watch = Watch(self._asks, address.names, self.complaints, self._told_made_again)

    def _begin_client(self) -> Consumer:
        """Make the client that takes the alerts; it asks to be let into the group. Raises AddressError."""
        # Whether the group has given us partitions, or none, since we joined it or lost those we had. The generation
        # does not tell: a client that finds no broker any more keeps its last. A pattern may match nothing for long.
        self._joined = all(name.startswith("^") for name in self._names)
        self._silent_since: float | None = None
        self._unanswered, self._next_look = 0, monotonic() + LOOK_SECONDS
        number = self._clients + 1

        def of_ours(call: Callable[..., None]) -> Callable[..., None]:
            """Leave out what a client says that another has replaced."""
            return lambda *told: call(*told) if number == self._clients else None

        client = made(Consumer, {**self._config, "on_commit": of_ours(self._committed)})
        client.subscribe(
            list(self._names),
            on_assign=of_ours(self._assigned),
            on_revoke=of_ours(self._revoked),
            on_lost=of_ours(self._lost),
        )
        self._clients = number
        return client

    # What the owner does.

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return up to ``limit`` messages, waiting only for the first."""
        end = monotonic() + timeout
        while True:
            self._serve()
            if messages := self._hand.hand_on(limit):
                return messages
            if (left := end - monotonic()) <= 0:
                return []
            self._fetch(
                max(1, limit - len(self._hand)), min(left, HURRY_SECONDS if self._hand.waiting else SLICE_SECONDS)
            )

    def rest(self, seconds: float) -> None:
        """Hand nothing on, but stay a member of the group: one that does not poll for minutes is expelled.

        What has been done meanwhile is committed at once, and ends the rest: there may be room for more.
        """
        end = monotonic() + seconds
        self._look()
        while (left := end - monotonic()) > 0:
            # The answer to a commit comes with a message, and the hand grows by it.
            hurry = self._commits.under_way and not self._hand.full
            try:
                job = self._inbox.get(timeout=min(left, HURRY_SECONDS) if hurry else left)
            except Empty:
                self._look()
            else:
                job()
                self._look()
                return

    def _look(self) -> None:
        """Do what others have handed us, and let the client call us; takes one message at most."""
        self._serve()
        with suppress(TransientError):
            self._fetch(1, 0)

    def close(self, clean: bool = True) -> None:
        """Commit what is done and leave the group; a static member keeps its partitions until its time is over.

        Parameters
        ----------
        clean : False when what is not done may be what made us end: the next owner shall know.
        """
        end = monotonic() + CLOSE_SECONDS
        self._serve()
        partitions = self._commits.partitions
        self._commits.farewell(self._consumer, partitions, clean, REVOKE_SECONDS)
        self._drop(partitions)
        while self._commits.under_way and monotonic() < end:
            with suppress(KafkaException):
                self._consumer.consume(1, SLICE_SECONDS)
        self._watch.close()
        self._leaving = True
        self._consumer.close()

    def _serve(self) -> None:
        """Do what others have handed us; commit; let pauses follow."""
        self._look_at_client()
        self._note_group()
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()()
        self._commits.review(caught_up=self._dry and not len(self._hand))
        self._jumped = {place for place in self._jumped if self._commits.is_behind(place)}
        self._commits.send(self._consumer, self._hand.waiting | self._jumped)
        self._pause_or_resume()

    def _look_at_client(self) -> None:
        """Take another client where ours knows no broker any more although the brokers answer others.

        From 2.10 on librdkafka forgets every broker that an answer about the cluster does not name. One that has just
        come back names none, itself included, and the client never connects again (its issue 5301). It then answers no
        question; one that only waits for its group does.
        """
        if self._commits.partitions or self._leaving:
            self._silent_since = None
            return
        if (now := monotonic()) < self._next_look:
            return
        answered = self._is_answered()
        self._next_look = monotonic() + LOOK_SECONDS
        if answered:
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since, self._unanswered = now, 0
        self._unanswered += self._watch.answered_at > self._silent_since
        if self._unanswered >= MOST_UNANSWERED:
            log.warning("the client of Kafka has lost its brokers: another one begins", end="source")
            self._replace_client()

    def _replace_client(self) -> None:
        """Take another client; where none can be made, as certificates are missing, the next look tries again."""
        try:
            client = self._begin_client()
        except AddressError as error:
            log.warning("no other client of Kafka can be made", end="source", reason=str(error))
            return
        self._commits.client_gone()
        former, self._consumer = self._consumer, client
        # It has nobody to say farewell to, and may wait for that.
        threading.Thread(target=former.close, name="former client", daemon=True).start()

    def _is_answered(self) -> bool:
        """Return whether a broker answers the client that takes the alerts."""
        topic = next((name for name in self._names if not name.startswith("^")), None)
        try:
            self._consumer.list_topics(topic, ANSWER_SECONDS)
        except KafkaException:
            return False
        return True

    def _note_group(self) -> None:
        """Note our membership; costs microseconds, as the client asks nobody. One that is closing has none to tell."""
        if self._apart is not None and not self._leaving:
            self._group = self._consumer.consumer_group_metadata()

    def _fetch(self, limit: int, timeout: float) -> None:
        """Take messages of the client's into the hand; this is where its callbacks run."""
        try:
            found = self._consumer.consume(1, timeout)
            if found and limit > 1:
                found += self._consumer.consume(limit - 1, 0)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        self._dry = not found
        for one in found:
            if (fault := one.error()) is not None:
                self.complaints.note(fault)
            elif self._commits.owns(place := partition_of(one)):
                if self._commits.start(place, offset_of(one)):
                    self._watch.read_journals([place], self._told_journals)
                if self._latest is not None and self._latest.holds(place, offset_of(one), message_of(one)):
                    self._offsets.finish([self._offsets.take(place, offset_of(one))])
                    self._jumped.add(place)
                else:
                    self._hand.add(one)

    def _told_journals(self, found: Mapping[Partition, str | None]) -> None:
        """Hand the owner what the journals say; called by the watch."""
        for place, metadata in found.items():
            self._inbox.put(partial(self._commits.open, place, metadata))

    def _told_made_again(self, topic: str) -> None:
        """Hand the owner that a topic was made again; called by the watch."""
        self._inbox.put(partial(self._begin_anew, topic))

    def _begin_anew(self, topic: str) -> None:
        """Read a topic that was made again from its start.

        The client goes on at its former offset where the new topic already reaches that far, and jumps over the rest.
        """
        places = [place for place in self._commits.partitions if place[0] == topic]
        self._drop(places)
        self._commits.begin(places)
        for place in places:
            self._commits.open(place, None)  # what is beside the former offset says nothing of the new topic
            with suppress(KafkaException):  # not ours any more, which we are about to hear
                self._consumer.seek(TopicPartition(*place, OFFSET_BEGINNING))
        log.warning("a topic was made again and is read from its start", topic=topic)

    def _pause_or_resume(self) -> None:
        """Pause everything once the hand has been full for a while, nothing otherwise.

        A pause makes the client throw away what it has fetched ahead and ask for it again. So a hand that is emptied
        at once, as it is after each full batch, must not pause anything: a backlog would be fetched many times over.
        """
        if not self._hand.full:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = monotonic()
        full = self._full_since is not None and monotonic() - self._full_since >= FULL_SECONDS
        assigned = set(self._commits.partitions)
        self._say(self._consumer.pause, assigned - self._paused if full else set())
        self._say(self._consumer.resume, set() if full else assigned & self._paused)
        self._paused = assigned if full else set()

    def _say(self, order: Callable[[list[TopicPartition]], None], partitions: set[Partition]) -> None:
        if partitions:
            with suppress(KafkaException):
                order([TopicPartition(*place) for place in partitions])

    # What the group calls, inside of consume().

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        began = monotonic()
        places = [(str(p.topic), p.partition) for p in partitions]
        consumer.incremental_assign(partitions)
        self._joined = True
        self._watch.begin(places)
        self._note_group()
        self._commits.begin(places)
        self._paused.difference_update(places)
        # The client remembers pauses of a partition's former life: each begins with an order of its own.
        self._say(consumer.resume, set(places))
        self._changed("partitions assigned", partitions, began)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        began = monotonic()
        places = [(str(p.topic), p.partition) for p in partitions]
        self._hand.forget(places)
        self._note_group()  # with the former generation no transaction would end while we wait for it
        self._finish_quickly(places, began + REVOKE_SECONDS)
        left = self._offsets.unfinished(places)
        self._commits.farewell(consumer, places, clean=True, patience=REVOKE_SECONDS / 2)
        self._drop(places)
        consumer.incremental_unassign(partitions)
        self._changed("partitions taken away", partitions, began, given_back=left)

    def _finish_quickly(self, places: Sequence[Partition], end: float) -> None:
        """Do what others hand us until nothing of these partitions is unfinished, or the time or the room is over.

        Nobody acknowledges a commit to us meanwhile, so that no room is gained.
        """
        while self._offsets.unfinished(places) and self._has_room() and (left := end - monotonic()) > 0:
            with suppress(Empty):
                self._inbox.get(timeout=left)()
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _has_room(self) -> bool:
        room = self.room()
        return room is None or room >= PIECE

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions that others may have read already: nothing of theirs counts any more."""
        began = monotonic()
        self._group, self._joined = None, False
        self._drop([(str(p.topic), p.partition) for p in partitions])
        with suppress(KafkaException):
            consumer.incremental_unassign(partitions)
        self._changed("partitions lost", partitions, began)

    def _drop(self, places: Sequence[Partition]) -> None:
        self._hand.forget(places)
        self._paused.difference_update(places)
        self._offsets.drop(places)
        self._commits.forget(places)

    def _changed(self, what: str, partitions: Sequence[TopicPartition], began: float, **facts: int) -> None:
        seconds = monotonic() - began
        self._watch.look_at(self._commits.partitions)
        self._rebalanced(seconds)
        names = [f"{p.topic}/{p.partition}" for p in partitions]
        log.info(what, partitions=names, seconds=round(seconds, 3), **facts)

    def _committed(self, error: KafkaError | None, positions: list[TopicPartition]) -> None:
        if error is None:
            self.complaints.answered()
        self._commits.answered(error, positions)

    # What others do, on threads of theirs.

    def done(self, messages: Sequence[Message]) -> None:
        """Note that messages need not be delivered again, and let the owner look at it.

        It is noted before this returns: the claim of the next transaction must begin where this one has ended.
        """
        self._offsets.finish(message.token for message in messages if isinstance(message.token, Token))
        if self._latest is not None:
            self._latest.add(messages)
        self._inbox.put(_nothing)

    def room(self) -> int | None:
        """Return how many messages may be answered before anything is committed; None in transactions."""
        return None if self._apart is not None else commits.UNCOMMITTED - self._offsets.uncommitted()

    def holds(self, message: Message) -> bool:
        """Return whether a message's partition has been ours ever since it was taken."""
        return not isinstance(message.token, Token) or self._offsets.holds(message.token)

    def reserve(self, timeout: float) -> bool:
        """Begin a transaction's time, in which no journal is written; returns whether that was possible."""
        return self._apart is None or self._apart.begin_transaction(timeout)

    def release(self) -> None:
        """End a transaction's time."""
        if self._apart is not None:
            self._apart.end()

    def claim(self, messages: Sequence[Message]) -> Claim:
        """Return what of these messages may be committed now. Raises TransientError when we are no member.

        The generation is looked at first: partitions that are lost after that are lost to a later one, and the broker
        refuses offsets in the name of one that is over. A member that was expelled has none, and the broker would take
        its offsets without a question.
        """
        group = self._group
        if group is None or _generation_of(group) == _NO_GENERATION:
            raise TransientError("not a member of the group at the moment")
        owned, ahead = self._offsets.ahead(m.token for m in messages if isinstance(m.token, Token))
        positions = []
        for place, offset in ahead.items():
            journal = self._commits.journal(place)
            positions.append(TopicPartition(*place, offset, "" if journal is None else str(journal.entry)))
        return Claim(owned, positions, group)

    def committed(self, claim: Claim) -> bool:
        """Return whether the group already reads on from where the claim ends. Raises TransientError.

        Rarely asked, and by a client for this one question: it waits for transactions that are about to move offsets,
        which the watch's does not.
        """
        wanted = [TopicPartition(p.topic, p.partition) for p in claim.positions]
        if not wanted:
            return False
        client = made(Consumer, self._asks | {"isolation.level": "read_committed"})
        try:
            found = client.committed(wanted, COMMITTED_SECONDS)
        except KafkaException as error:
            raise TransientError(str(error)) from error
        finally:
            client.close()
        return [p.offset for p in found] == [p.offset for p in claim.positions]

    def refusal(self) -> str:
        """Return why the cluster lets us in nowhere, in words; empty when it does, or nobody answers."""
        self._watch.first_round(REFUSAL_SECONDS)
        return self.complaints.refusal

    def standing(self) -> Standing:
        """Return how we stand with the brokers, as far as they said; asks nobody."""
        view, partitions = self._watch.view, self._commits.partitions
        lag = {place: count for place, count in view.lag.items() if place in partitions}
        return Standing(
            trouble=self.complaints.refusal or view.trouble,
            assigned=len(partitions),
            lag={(topic, str(number)): count for (topic, number), count in lag.items()},
            waiting=sum(lag.values()) - self._offsets.unfinished() - len(self._hand),
            member=self._joined,
        )


def _nothing() -> None:
    """Do nothing: a job that only makes the owner look at what has changed."""


def _generation_of(group: object) -> int:
    """Return the generation in what the client says of its membership: a sign, then a number of 32 bits."""
    sign, _, rest = bytes(cast(bytes, group)).partition(b":")
    if not sign.startswith(b"CGMD") or len(rest) < 4:
        return 0  # another form of a later client; the broker judges
    return int(struct.unpack_from("=i", rest)[0])


TIMEOUT_SECONDS: Final = 30.0
RANGE_OPTIONS: Final = ("since", "until", "from", "to", "partition")


class KafkaRange(FiniteSource):
    """Messages of topics from ``since`` to ``until`` (ISO times), or of one partition from offset to offset."""

    def __init__(self, address: Address, extra: Mapping[str, Any]) -> None:
        address.only("group", *RANGE_OPTIONS)
        own = {"group.id": "nightjar-replay", "enable.auto.commit": False, "queued.max.messages.kbytes": 32768}
        self._consumer = made(Consumer, properties(address, extra, own))
        self._ends: dict[tuple[str, int], int] = {}
        try:
            self._start(address)
        except KafkaException as error:
            raise AddressError(f"kafka://{address.hosts}: {error.args[0].str()}") from None

    def _start(self, address: Address) -> None:
        assigned = []
        for topic, partition in self._partitions(address):
            low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_SECONDS)
            start = self._bound(address, "from", "since", topic, partition, low)
            end = self._bound(address, "to", "until", topic, partition, high)
            start, end = max(start, low), min(end, high)
            if start < end:
                self._ends[topic, partition] = end
                assigned.append(TopicPartition(topic, partition, start))
        self._consumer.assign(assigned)

    def _partitions(self, address: Address) -> list[tuple[str, int]]:
        wanted = int(address.number("partition", -1))
        if wanted < 0 and {"from", "to"} & set(address.options):
            raise AddressError("offsets (`from`, `to`) belong to a `partition`")
        found = []
        for topic in address.names:
            described = self._consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic]
            found += [(topic, number) for number in described.partitions if wanted in (-1, number)]
        return found

    def _bound(self, address: Address, offset: str, moment: str, topic: str, partition: int, default: int) -> int:
        if offset in address.options:
            return int(address.number(offset, default))
        if moment not in address.options:
            return default
        asked = TopicPartition(topic, partition, address.moment(moment))
        found = self._consumer.offsets_for_times([asked], TIMEOUT_SECONDS)[0].offset
        return default if found == OFFSET_END else found

    def poll(self, limit: int, timeout: float) -> list[Message]:
        """Return the next messages; none when every partition has been read to its end."""
        while self._ends:
            try:
                found = self._consumer.consume(limit, timeout)
            except KafkaException as error:
                raise TransientError(str(error)) from error
            messages = [message for one in found if (message := self._message(one)) is not None]
            if messages:
                return messages
            self._forget_read()
        return []

    def _message(self, one: Any) -> Message | None:
        place = (one.topic(), one.partition())
        if one.error() is not None or one.offset() >= self._ends.get(place, 0):
            return None
        message = message_of(one)
        if one.offset() + 1 >= self._ends[place]:
            del self._ends[place]
        return message

    def _forget_read(self) -> None:
        """Tell the end by the position: a last offset may be no message (transactions, compaction)."""
        for position in self._consumer.position(self._consumer.assignment()):
            place = (str(position.topic), position.partition)
            if place in self._ends and position.offset >= self._ends[place]:
                del self._ends[place]

    def close(self, clean: bool = True) -> None:
        """Let go of the broker."""
        self._consumer.close()
