"""Stream worker: consumes messages, publishes results, and accounts for every alert.

The path of a message, from poll to commit:

1. **Poll.** ``Worker._consume`` polls the source while there is capacity, on the thread that owns the source, and
   starts a task for each batch. ``Pipeline.run`` processes the batch; each stage returns a new ``Batch``.
2. **Open.** The ``DeliveryLedger`` records every message as unresolved, and the batch gets its turn to publish.
3. **Decode.** ``DecodeStage`` reads the alerts of each message, on the decoding thread.
4. **Infer.** ``InferStage`` routes each alert to a model and classifies the batch.
5. **Encode and publish.** ``PublishStage`` encodes the results, sends them to the sink, and writes a dead letter for
   each message with an alert that failed. It retries until all are acknowledged.
6. **Resolve.** The ledger resolves each alert as classified, abstained, dead or tombstone, and raises if one remains.
7. **Acknowledge and commit.** The source acknowledges the messages: Redis at once; Kafka by committing the offset up to
   which all messages are finished, on the source's thread.

With ``exactly_once=yes``, ``ExactlyOnce.commit`` runs steps 5 to 7 as one transaction, after encoding. The
functions of ``decisions`` make all decisions between result, dead letter and retry.

On SIGTERM or SIGINT the worker stops polling, finishes the batches in flight within ``drain_timeout``, and gives the
rest back to the broker. It exits with status 0 if the ledger balances. It exits with 1 after a failure of the engine, a
lost alert or a ledger that does not balance, and with 75 (:data:`RESTART_STATUS`) after a fatal error of a broker's
client; this delivery of the messages in flight then counts. Workers of one group share the partitions: to scale out,
start more of them.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic
from typing import Final, TypeVar

import structlog

from nightjar_alerts.alerts.envelopes import MessageReader
from nightjar_alerts.alerts.files import exit_status
from nightjar_alerts.alerts.packet import ReadLimits
from nightjar_alerts.alerts.schema_registry import SchemaRegistry
from nightjar_alerts.core.failures import RunError
from nightjar_alerts.models.bundle import BundleError
from nightjar_alerts.models.runtime import ProviderError
from nightjar_alerts.service.observe.live import LiveFeed
from nightjar_alerts.service.observe.metrics import Metrics
from nightjar_alerts.service.observe.tracing import tracing_to
from nightjar_alerts.service.process import (
    SWITCH_SECONDS,
    configure_log,
    pin_malloc_thresholds,
    warn_about_environment,
)
from nightjar_alerts.service.registry.loader import LoadOne, load_one
from nightjar_alerts.service.registry.manager import ModelManager
from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.connectors import Connectors, check_addresses, open_connectors
from nightjar_alerts.service.stream.dead_letters import restore
from nightjar_alerts.service.stream.exactly_once import MAX_TRANSACTIONAL_BATCHES, ExactlyOnce
from nightjar_alerts.service.stream.files import FileSource
from nightjar_alerts.service.stream.formats import encode_and_show, encode_record
from nightjar_alerts.service.stream.ledger import DeliveryLedger, UnbalancedError
from nightjar_alerts.service.stream.messages import (
    ActiveErrors,
    FatalError,
    FiniteSource,
    Message,
    Source,
    TransientError,
    backoff,
)
from nightjar_alerts.service.stream.pipeline import DecodeStage, InferStage, Pipeline
from nightjar_alerts.service.stream.probes import LiveView, Probes, ProgressMonitor
from nightjar_alerts.service.stream.publishing import DEAD_LETTERS, PublishStage, RecordEncoder

POLL_SECONDS: Final = 0.5
HEARTBEAT_SECONDS: Final = 0.05
BATCH_WAIT_SECONDS: Final = 0.2
OBSERVE_SECONDS: Final = 2.0
STUCK_SECONDS: Final = 60.0
RESTART_STATUS: Final = os.EX_TEMPFAIL
"""Exit status (75, EX_TEMPFAIL) after a fatal error of a broker's client: a restart may succeed at once."""
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Worker:
    """One worker process: owns the source, the tasks in flight, the ledger and the probes.

    Parameters
    ----------
    replay : if true, process the messages that the source holds now, commit nothing, and exit.
    load : loads a bundle; called in a thread.

    Attributes
    ----------
    ledger : delivery ledger.
    live : live view; None if ``live_key`` is not set.
    probes : server of ``/healthz``, ``/readyz`` and ``/metrics``; None before :meth:`run`.
    """

    def __init__(self, settings: StreamSettings, replay: bool = False, load: LoadOne = load_one) -> None:
        self._settings, self._replay = settings, replay
        self.metrics = Metrics(tracing_to(settings.otlp_endpoint, settings.trace_ratio))
        self.ledger = DeliveryLedger(self.metrics)
        self._errors = ActiveErrors(self.metrics)
        self.live = LiveView(LiveFeed(), settings.live_key) if settings.live_key else None
        self._models = ModelManager(settings, self.metrics, self._fail, load)
        self._state, self._failure, self._failure_status = "starting", "", 1
        self._connectors: Connectors | None = None
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_messages = self._in_flight_bytes = 0
        self._max_batches: int | None = None
        self.probes: Probes | None = None
        self._last_beat, self._backoff = monotonic(), backoff()
        after = settings.unready_after, settings.unhealthy_after
        self._progress = ProgressMonitor(self.metrics, *after, external_error=self._external_error)
        # One thread owns the source. One thread decodes, since more would only compete for the GIL.
        self._threads = ThreadPoolExecutor(1, "source"), ThreadPoolExecutor(1, "decode")

    async def run(self) -> int:
        """Run until :meth:`stop` is called or the source has ended; return the exit status."""
        self.probes = self._open_probes()
        log.info("probes", host=self._settings.host, port=self.probes.port)
        try:
            await self._models.start()
            await self._work()
        finally:
            await self._models.stop()
            await asyncio.to_thread(self.metrics.tracing.close)
            self.probes.close()
            for executor in self._threads:
                executor.shutdown(wait=False, cancel_futures=True)
        return self._exit_status()

    def _open_probes(self) -> Probes:
        host, port = self._settings.host, self._settings.worker_port
        try:
            allowed = self._settings.allowed_hosts
            return Probes(host, port, self.metrics, self._unhealthy, self._unready, self.live, allowed)
        except OSError as error:
            address = f"{host}:{port} (NIGHTJAR_HOST, NIGHTJAR_WORKER_PORT)"
            raise AddressError(f"metrics and probes cannot be served at {address}: {error.strerror}") from None

    async def _work(self) -> None:
        # On the source's thread, which owns the consumer from the start. Connecting may take seconds.
        connectors = self._connectors = await self._call_source(
            lambda: open_connectors(self._settings, self._replay, self.metrics)
        )
        source, pipeline = connectors.source, self._pipeline(connectors)
        self._max_batches = MAX_TRANSACTIONAL_BATCHES if connectors.transactions else None
        self._state = "ready"
        log.info("ready", model=pipeline.model, source=type(source).__name__, replay=self._replay)
        reports = [asyncio.create_task(work) for work in (self._report(), self._observe(source))]
        try:
            await self._consume(source, pipeline)
        except FatalError as error:
            self._fail(str(error), RESTART_STATUS)
        except Exception as error:  # after any error, batches in flight must be finished
            log.critical("the source failed", exc_info=error)
            self._fail("the source failed")
        finally:
            await self._drain(source)
            for task in reports:
                task.cancel()
            # Not clean after a failure: a message in flight may have caused it, so this delivery must count.
            await self._call_source(lambda: source.close(clean=not self._failure))
            for sink in (connectors.sink, connectors.dead_letters):
                await asyncio.to_thread(sink.close)

    def _pipeline(self, connectors: Connectors) -> Pipeline:
        settings = self._settings
        limits = ReadLimits(max_decompressed_bytes=settings.max_decompressed_bytes, max_records=settings.max_packets)
        registry = SchemaRegistry(settings.registry or None, settings.registry_cache, settings.schemas)
        decoding = DecodeStage(
            MessageReader(registry, limits, settings.schemas), settings.topics, settings.unknown_schema,
            settings.max_deliveries, self._threads[1], self._errors,
        )  # fmt: skip
        encode: RecordEncoder = partial(encode_record, form=settings.sink_format, embedding=settings.sink_embedding)
        if self.live is not None:
            encode = partial(encode_and_show, encode=encode, feed=self.live.feed)
        publishing = PublishStage(
            connectors.sink,
            connectors.dead_letters,
            encode,
            self._threads[1],
            self._errors,
            self.metrics,
        )
        stages = decoding, InferStage(self._models, self._errors, settings.prior, settings.sink_evolution), publishing
        model = str(self._models.router.select().model.reference)
        once = (
            ExactlyOnce(*connectors.transactions, publishing, self._errors, self.metrics)
            if connectors.transactions
            else None
        )
        return Pipeline(connectors.source, stages, self.ledger, self._errors, self.metrics, model, once)

    async def _consume(self, source: Source, pipeline: Pipeline) -> None:
        """Until the worker stops, poll messages and start batches while there is capacity, else send heartbeats.

        Capacity is limited by messages, bytes and, in transactions, batches in flight. Nothing is polled while dead
        letters cannot be written.
        """
        while not self._stop.is_set():
            self._last_beat = monotonic()
            await self._wait_for_batch_end()
            free = self._settings.max_inflight_messages - self._in_flight_messages
            full = free <= 0 or self._in_flight_bytes > self._settings.max_held_bytes or self._at_batch_limit()
            if full or DEAD_LETTERS in self._errors:
                await self._call_source(lambda: source.heartbeat(HEARTBEAT_SECONDS))
                continue
            messages = await self._poll(source, min(free, self._settings.batch_messages))
            if messages:
                self._start_batch(pipeline, messages)
            elif messages is not None and source.finite:
                await self._wait_for_batches()
                return

    def _at_batch_limit(self) -> bool:
        return self._max_batches is not None and len(self._tasks) >= self._max_batches

    async def _wait_for_batch_end(self) -> None:
        """If the maximum number of batches is in flight, wait a short time for one to end."""
        if self._at_batch_limit():
            await asyncio.wait(self._tasks, timeout=BATCH_WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def _poll(self, source: Source, limit: int) -> list[Message] | None:
        """Return messages, an empty list if none arrived in time, None if the source failed."""
        try:
            messages = await self._call_source(lambda: source.poll(limit, POLL_SECONDS))
        except TransientError as error:
            await self._errors.wait("source", str(error), next(self._backoff))
            return None
        self._errors.clear("source")
        self._backoff = backoff()
        return [restore(message) for message in messages] if self._replay else messages

    def _start_batch(self, pipeline: Pipeline, messages: list[Message]) -> None:
        self._count(messages, 1)  # not in the task, since the next poll depends on it
        self._progress.record_consumed()
        task = asyncio.create_task(self._run_batch(pipeline, messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self, messages: list[Message], sign: int) -> None:
        self._in_flight_messages += sign * len(messages)
        self._in_flight_bytes += sign * sum(len(message.value) for message in messages)
        self.metrics.stream_inflight.set(self._in_flight_messages)

    async def _run_batch(self, pipeline: Pipeline, messages: list[Message]) -> None:
        try:
            await pipeline.run(messages)
        except (RunError, UnbalancedError) as error:
            self._fail(str(error))
        except FatalError as error:
            self._fail(str(error), RESTART_STATUS)
        except Exception as error:  # these messages are unresolved: end the process, another one retries
            log.critical("a batch failed", exc_info=error)
            self._fail("a batch failed")
        finally:
            self._count(messages, -1)
            self._progress.record_finished()

    async def _wait_for_batches(self) -> None:
        """Wait until every batch in flight has ended, or the worker stops."""
        stop = asyncio.create_task(self._stop.wait())
        while self._tasks and not self._stop.is_set():
            await asyncio.wait([stop, *self._tasks], timeout=1, return_when=asyncio.FIRST_COMPLETED)
            self._last_beat = monotonic()  # the last batches may take minutes; the worker is not stuck
        stop.cancel()

    async def _drain(self, source: Source) -> None:
        """Finish batches in flight within ``drain_timeout``, while the source keeps committing; cancel the rest."""
        # After a fatal error, a broker's client publishes and commits nothing.
        seconds = 0.0 if self._failure_status == RESTART_STATUS else self._settings.drain_timeout
        self._state, end = "draining", monotonic() + seconds
        while self._tasks and (remaining := end - monotonic()) > 0:
            try:
                await self._call_source(lambda: source.heartbeat(HEARTBEAT_SECONDS))
            except Exception as error:  # after any error, batches in flight must be finished
                log.warning("the source failed while the worker drains", exc_info=error)
                await asyncio.wait(self._tasks, timeout=remaining)
        for task in list(self._tasks):
            task.cancel()  # `Pipeline.run` gives back its unresolved alerts
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call_source(self, work: Callable[[], T]) -> T:
        """Call the source on the thread that owns it; return the result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[0], work)

    async def _report(self) -> None:
        """Log the ledger's account every ``account_interval`` seconds."""
        while True:
            await asyncio.sleep(self._settings.account_interval)
            log.info("account", topics=self.ledger.summary(), in_flight=self._in_flight_messages)

    async def _observe(self, source: Source) -> None:
        """Record the status of the source every few seconds."""
        while True:
            # Not on the source's thread, which may be waiting for messages.
            self._progress.observe(await asyncio.to_thread(source.status), self._in_flight_messages)
            await asyncio.sleep(OBSERVE_SECONDS)

    def _external_error(self) -> str:
        """Return errors of brokers, sinks, the schema registry or the disk, outside this process."""
        reasons = [str(self._errors)]
        if self._connectors is not None:
            sinks = {"sink": self._connectors.sink, "dead letters": self._connectors.dead_letters}
            for name, sink in sinks.items():
                if error := sink.error:
                    reasons.append(f"{name}: {error}")
        return "; ".join(filter(None, reasons))

    def stop(self) -> None:
        """Stop polling, finish the batches in flight, and end."""
        self._stop.set()

    def _fail(self, reason: str, status: int = 1) -> None:
        if not self._failure:
            self._failure, self._failure_status = reason, status
        self._stop.set()

    def _unhealthy(self) -> str:
        late = monotonic() - self._last_beat
        stuck = self._state == "ready" and late > STUCK_SECONDS
        if self._failure or stuck:
            return self._failure or f"the worker has not moved for {late:.0f} s"
        return self._progress.unhealthy() if self._state == "ready" else ""

    def _unready(self) -> str:
        if self._failure or self._state != "ready":
            return self._failure or f"the worker is {self._state}"
        return "; ".join(filter(None, (self._progress.unready(), self._external_error())))

    def _exit_status(self) -> int:
        """Log the final account; return `exit_status`, or after a failure 1 or :data:`RESTART_STATUS`."""
        source = self._connectors.source if self._connectors else None
        unreadable, skipped = (source.unreadable, source.skipped) if isinstance(source, FileSource) else ({}, [])
        unmatched = source.unmatched if isinstance(source, FiniteSource) else ()
        ranges = source.ranges if isinstance(source, FiniteSource) else None
        details = {"ranges": ranges, "unmatched": unmatched, "unreadable": unreadable, "not_alerts": skipped}
        log.info(
            "final account",
            topics=self.ledger.summary(),
            **{name: value for name, value in details.items() if value},
        )
        if self._failure:  # names the alert if one was lost
            log.critical("the worker failed", reason=self._failure)
        try:
            self.ledger.check()
        except UnbalancedError as error:
            log.critical("the ledger does not balance", reason=str(error))
            return 1
        if self._failure:
            return self._failure_status
        if source is None or not source.finite:
            return 0
        if unmatched:
            log.error("the source matches nothing", reason="; ".join(unmatched))
            return 1
        read, dead = self.ledger.count("classified", "abstained"), self.ledger.count("dead")
        return exit_status(read, dead + len(unreadable), len(skipped))


async def supervise(worker: Worker) -> int:
    """Run a worker until it ends or gets SIGINT or SIGTERM; return the exit status."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    return await worker.run()


def work(settings: StreamSettings, replay: bool = False) -> int:
    """Set up the process and run a worker; return the exit status."""
    configure_log(settings)
    pin_malloc_thresholds()
    sys.setswitchinterval(SWITCH_SECONDS)
    warn_about_environment(settings)
    try:
        check_addresses(settings, replay)  # before models are loaded, as that takes seconds
        status = asyncio.run(supervise(Worker(settings, replay)))
    except (AddressError, BundleError, ProviderError) as error:
        log.critical("the worker cannot start", reason=str(error))
        return 1
    if status == RESTART_STATUS:  # a hung call of a client would keep the interpreter from exiting
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
