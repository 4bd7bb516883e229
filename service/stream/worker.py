"""The worker: takes messages while there is room, brings them to an end, and accounts for every one when it stops.

SIGTERM or SIGINT: nothing more is taken, what is under way is finished within ``drain_timeout``, the rest is given back
to the broker. The process ends with 0 when the account balances; a dead engine, an alert lost between the stages or an
account that does not balance ends it with 1, and what was under way counts as delivered once more. More workers of the
same group share the partitions: scaling out is starting more of them.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final, TypeVar

import structlog

from models.alerts.envelopes import MessageReader
from models.alerts.packet import ReadLimits
from models.alerts.schema_registry import SchemaRegistry
from models.bundle import BundleError
from models.runtime import ProviderError
from service.engine.batch import EngineFailure
from service.observe.metrics import Metrics
from service.process import SWITCH_SECONDS, configure_log, fix_thresholds, tracer_of
from service.registry.repository import LoadModels, ModelRepository
from service.settings import StreamSettings, unknown_settings
from service.stream.addresses import AddressError
from service.stream.batches import Accounts, UnbalancedError
from service.stream.ends import Ends, open_ends, reads_dead_letters
from service.stream.messages import Message, Source, TransientError, Troubles, pauses, restored
from service.stream.pipeline import Classifying, Decoding, Pipeline
from service.stream.probes import Movement, Probes
from service.stream.publishing import BATCHES_AHEAD, ExactlyOnce, Publishing

POLL_SECONDS: Final = 0.5
REST_SECONDS: Final = 0.05
AHEAD_SECONDS: Final = 0.2
OBSERVE_SECONDS: Final = 2.0
STUCK_SECONDS: Final = 60.0
T = TypeVar("T")

log = structlog.get_logger(__name__)


class Worker:
    """One worker process.

    Parameters
    ----------
    replay : take what the source holds now, commit nothing, and end.
    load : how the models come into being.

    Attributes
    ----------
    accounts : what became of every alert.
    probes : where it answers, while it runs.
    """

    def __init__(self, settings: StreamSettings, replay: bool = False, load: LoadModels | None = None) -> None:
        self._settings, self._replay = settings, replay
        self.metrics = Metrics()
        self.accounts = Accounts(self.metrics)
        self._troubles = Troubles(self.metrics)
        self._tracer = tracer_of(settings.otlp_endpoint, settings.trace_ratio)
        self._models = ModelRepository(settings, self.metrics, self._tracer, self._fail, load)
        self._state, self._failure = "starting", ""
        self._ends: Ends | None = None
        self._restores = False
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._messages = self._bytes = 0
        self._batches_ahead: int | None = None
        self.probes: Probes | None = None
        self._beat, self._pauses = monotonic(), pauses()
        after = settings.unready_after, settings.unhealthy_after
        self._movement = Movement(self.metrics, *after, outside=self._outside)
        # One thread owns the source. One decodes: more would wait for each other's turn at the interpreter.
        self._threads = ThreadPoolExecutor(1, "source"), ThreadPoolExecutor(1, "decode")

    async def run(self) -> int:
        """Work until told to stop, or until the source has ended; returns the exit status."""
        settings = self._settings
        self.probes = Probes(settings.host, settings.worker_port, self.metrics, self._unhealthy, self._unready)
        log.info("probes", port=self.probes.port)
        try:
            await self._models.start()
            await self._work()
        finally:
            await self._models.stop()
            await asyncio.to_thread(self._tracer.close)
            self.probes.close()
            for executor in self._threads:
                executor.shutdown(wait=False, cancel_futures=True)
        return self._verdict()

    async def _work(self) -> None:
        rebalanced = self.metrics.stream_rebalances.observe
        ends = self._ends = await self._on_source(lambda: open_ends(self._settings, self._replay, rebalanced))
        self._restores = reads_dead_letters(self._settings, self._replay)
        source, pipeline = ends.source, self._pipeline(ends)
        self._batches_ahead = BATCHES_AHEAD if ends.transactions else None
        self._state = "ready"
        log.info("ready", model=pipeline.model, source=type(source).__name__, replay=self._replay)
        reports = [asyncio.create_task(work) for work in (self._report(), self._observe(source))]
        try:
            await self._take(source, pipeline)
        except Exception as error:  # what was taken must come to an end, whatever happened to the source
            log.critical("the source failed", exc_info=error)
            self._fail("the source failed")
        finally:
            await self._drain(source)
            for task in reports:
                task.cancel()
            await self._on_source(lambda: source.close(clean=not self._failure))
            for sink in (ends.sink, ends.dead_letters):
                await asyncio.to_thread(sink.close)

    def _pipeline(self, ends: Ends) -> Pipeline:
        settings = self._settings
        limits = ReadLimits(max_decompressed_bytes=settings.max_decompressed_bytes, max_records=settings.max_packets)
        registry = SchemaRegistry(settings.registry or None, settings.registry_cache, settings.schemas)
        decoding = Decoding(
            MessageReader(registry, limits, settings.schemas), settings.topics, settings.unknown_schema,
            settings.max_deliveries, self._threads[1], self._troubles,
        )  # fmt: skip
        publishing = Publishing(
            ends.sink, ends.dead_letters, settings.sink_format, self._threads[1], self._troubles, self.metrics
        )
        stages = decoding, Classifying(self._models, self._troubles, settings.prior), publishing
        model = str(self._models.classifier().served.reference)
        once = ExactlyOnce(*ends.transactions, publishing, self._troubles) if ends.transactions else None
        return Pipeline(ends.source, stages, self.accounts, self._troubles, self.metrics, model, once)

    async def _take(self, source: Source, pipeline: Pipeline) -> None:
        """Take messages while there is room for them."""
        while not self._stop.is_set():
            self._beat = monotonic()
            await self._let_batches_end()
            room = self._settings.max_inflight_messages - self._messages
            if room <= 0 or self._bytes > self._settings.max_held_bytes or self._far_ahead():
                await self._on_source(lambda: source.rest(REST_SECONDS))
                continue
            messages = await self._poll(source, min(room, self._settings.batch_messages))
            if messages:
                self._begin(pipeline, messages)
            elif messages is not None and source.finite:
                await self._all_done()
                return

    def _far_ahead(self) -> bool:
        return self._batches_ahead is not None and len(self._tasks) >= self._batches_ahead

    async def _let_batches_end(self) -> None:
        """Wait for the next end of a batch where only so many may be under way; soon, as a rule."""
        if self._far_ahead():
            await asyncio.wait(self._tasks, timeout=AHEAD_SECONDS, return_when=asyncio.FIRST_COMPLETED)

    async def _poll(self, source: Source, limit: int) -> list[Message] | None:
        """Return messages, none of them after a while, None when the source fails."""
        try:
            found = await self._on_source(lambda: source.poll(limit, POLL_SECONDS))
        except TransientError as error:
            await self._troubles.wait("source", str(error), next(self._pauses))
            return None
        self._troubles.end("source")
        self._pauses = pauses()
        return [restored(message) for message in found] if self._restores else found

    def _begin(self, pipeline: Pipeline, messages: list[Message]) -> None:
        self._count(messages, 1)
        self._movement.took()
        task = asyncio.create_task(self._handle(pipeline, messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self, messages: list[Message], sign: int) -> None:
        self._messages += sign * len(messages)
        self._bytes += sign * sum(len(message.value) for message in messages)
        self.metrics.stream_inflight.set(self._messages)

    async def _handle(self, pipeline: Pipeline, messages: list[Message]) -> None:
        try:
            await pipeline.handle(messages)
        except (EngineFailure, UnbalancedError) as error:
            self._fail(str(error))
        except Exception as error:  # whatever it is, these messages are not done: another process shall try
            log.critical("a batch failed", exc_info=error)
            self._fail("a batch failed")
        finally:
            self._count(messages, -1)
            self._movement.ended()

    async def _all_done(self) -> None:
        """Wait until everything that was taken is done, or the worker shall stop."""
        stop = asyncio.create_task(self._stop.wait())
        while self._tasks and not self._stop.is_set():
            await asyncio.wait([stop, *self._tasks], timeout=1, return_when=asyncio.FIRST_COMPLETED)
            self._beat = monotonic()
        stop.cancel()

    async def _drain(self, source: Source) -> None:
        """Bring to an end what is under way, as far as there is time; the source goes on committing meanwhile."""
        self._state, end = "draining", monotonic() + self._settings.drain_timeout
        while self._tasks and (left := end - monotonic()) > 0:
            try:
                await self._on_source(lambda: source.rest(REST_SECONDS))
            except Exception as error:  # whatever it is, what was taken must come to an end
                log.warning("the source failed while the worker drains", exc_info=error)
                await asyncio.wait(self._tasks, timeout=left)
        for task in list(self._tasks):
            task.cancel()  # what it holds is given back on the way out (`Pipeline.handle`)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_source(self, work: Callable[[], T]) -> T:
        """Return the result of a call to the source, whose calls are all made from one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads[0], work)

    async def _report(self) -> None:
        """Log the account now and then."""
        while True:
            await asyncio.sleep(self._settings.account_interval)
            log.info("account", topics=self.accounts.summary(), under_way=self._messages)

    async def _observe(self, source: Source) -> None:
        """Ask how the source stands, every few seconds."""
        while True:
            self._movement.observe(await asyncio.to_thread(source.standing), self._messages)
            await asyncio.sleep(OBSERVE_SECONDS)

    def _outside(self) -> str:
        """Return what is wrong outside of this process, in words."""
        told = [str(self._troubles)]
        if self._ends is not None:
            told += [f"sink: {self._ends.sink.trouble}"] if self._ends.sink.trouble else []
            told += [f"dead letters: {self._ends.dead_letters.trouble}"] if self._ends.dead_letters.trouble else []
        return "; ".join(filter(None, told))

    def stop(self) -> None:
        """Stop taking messages, finish, and end."""
        self._stop.set()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._stop.set()

    def _unhealthy(self) -> str:
        late = monotonic() - self._beat
        stuck = self._state == "ready" and late > STUCK_SECONDS
        if self._failure or stuck:
            return self._failure or f"the worker has not moved for {late:.0f} s"
        return self._movement.unhealthy() if self._state == "ready" else ""

    def _unready(self) -> str:
        if self._failure or self._state != "ready":
            return self._failure or f"the worker is {self._state}"
        engines = next((engine.trouble for engine in self._models.engines if engine.trouble), "")
        return engines or "; ".join(filter(None, (self._movement.unready(), self._outside())))

    def _verdict(self) -> int:
        """Return whether everything went well, with the account in the log."""
        log.info("final account", topics=self.accounts.summary())
        try:
            self.accounts.check()
        except UnbalancedError as error:
            log.critical("the account does not balance", reason=str(error))
            return 1
        if self._failure:
            log.critical("the worker failed", reason=self._failure)
        return 1 if self._failure else 0


async def supervise(worker: Worker) -> int:
    """Run a worker that the usual signals stop; returns the exit status."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    return await worker.run()


def work(settings: StreamSettings, replay: bool = False) -> int:
    """Run a worker until it ends; returns the exit status."""
    configure_log(settings)
    fix_thresholds()
    sys.setswitchinterval(SWITCH_SECONDS)
    for name in unknown_settings(os.environ):
        log.warning("unknown setting", name=name)
    try:
        return asyncio.run(supervise(Worker(settings, replay)))
    except (AddressError, BundleError, ProviderError) as error:
        log.critical("the worker cannot start", reason=str(error))
        return 1
