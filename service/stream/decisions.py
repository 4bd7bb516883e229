"""Every decision of the worker on a message or alert: result, dead letter, tombstone or retry.

| stage | condition | result for the message or alert |
|---|---|---|
| read | delivered more often than ``max_deliveries`` | dead letter, ``deliver/too_many_deliveries`` |
| read | a null value | tombstone: acknowledged and counted |
| read | the schema cannot be fetched | retried, or dead letter with ``unknown_schema=dead_letter`` |
| read | not an alert, or damaged | dead letter, ``decode/REASON`` |
| infer | classified or abstained | result |
| infer | out of memory, deadline exceeded | retried, then dead letter |
| infer | any other failure | dead letter, ``classify/REASON`` |
| infer | the queue is full | retried |
| publish | the alert lacks a value that the format requires | dead letter, ``encode/not_expressible`` |
| publish | the sink rejects this record | dead letter, ``publish/refused`` |
| publish | the sink fails, or rejects every record | retried, and the worker is not ready |
| dead letter | too large for its destination | shortened |
| dead letter | any other failure | retried, and the worker is not ready |
| any | an unexpected error | dead letter for this message only, ``internal_error`` |
| any | the engine, a Kafka client or the ledger fails | given back: the process ends |
| any | the partition has another owner, or the worker stops | given back |

:mod:`~nightjar_alerts.service.stream.broker_errors` lists the broker errors that concern a single record.
"""

from typing import Final, Literal, NamedTuple

from nightjar_alerts.alerts.reader import PacketOutcome
from nightjar_alerts.alerts.schema_registry import SchemaUnavailableError
from nightjar_alerts.core.failures import RunError
from nightjar_alerts.core.items import Outcome
from nightjar_alerts.service.stream.ledger import UnbalancedError
from nightjar_alerts.service.stream.messages import (
    DeadLetterCause,
    DeliveryReport,
    FatalError,
    Message,
    PermanentError,
    RecordTooLargeError,
    Stage,
)

UnknownSchemaPolicy = Literal["wait", "dead_letter"]
TRANSIENT_REASONS: Final = ("out_of_memory", "deadline_exceeded")
"""Reasons of failed inference that a retry may resolve."""
MAX_TRIES: Final = 4
"""Maximum number of attempts at inference."""
PROCESS_ERRORS: Final = (RunError, UnbalancedError, FatalError)
"""Errors that are not caused by a message and end the process."""


class Retry(NamedTuple):
    """Retry after at least ``seconds``."""

    reason: str
    seconds: float = 0.0


def before_reading(message: Message, max_deliveries: int) -> DeadLetterCause | None:
    """Return the cause of a dead letter if a message must not be read, else None."""
    if message.deliveries <= max_deliveries:
        return None
    ending = "read: its body is where it was" if message.unread else "done"
    return DeadLetterCause("deliver", "too_many_deliveries", f"delivered {message.deliveries} times and never {ending}")


def after_reading(
    read: list[PacketOutcome] | Exception, policy: UnknownSchemaPolicy
) -> list[PacketOutcome] | DeadLetterCause | Retry:
    """Decide on a message after reading it."""
    if isinstance(read, SchemaUnavailableError):
        if policy == "wait":
            return Retry(str(read), read.retry_after)
        return DeadLetterCause("decode", "schema_unavailable", str(read))
    if isinstance(read, Exception):
        return DeadLetterCause("decode", "internal_error", type(read).__name__)
    return read or DeadLetterCause("decode", "empty", "no alert in it")


def after_inference(outcome: Outcome, last_try: bool) -> Literal["publish", "retry"] | DeadLetterCause:
    """Decide on the outcome of an alert."""
    if outcome.status in ("classified", "abstained"):
        return "publish"
    if outcome.reason in TRANSIENT_REASONS and not last_try:
        return "retry"
    return DeadLetterCause("classify", outcome.reason, outcome.detail)


def after_encoding(error: Exception) -> DeadLetterCause:
    """Decide on a result that could not be encoded."""
    if isinstance(error, PermanentError):
        return DeadLetterCause("encode", "not_expressible", str(error))
    return DeadLetterCause("encode", "internal_error", type(error).__name__)


def after_publishing(report: DeliveryReport) -> Literal["published"] | DeadLetterCause | Retry:
    """Decide on the delivery report of a result."""
    if report is None:
        return "published"
    if isinstance(report, PermanentError):
        return DeadLetterCause("publish", "refused", str(report))
    return Retry(str(report))


def after_dead_letter(report: DeliveryReport, shortened: bool) -> Literal["published", "shorten"] | Retry:
    """Decide on the delivery report of a dead letter."""
    if report is None:
        return "published"
    if isinstance(report, RecordTooLargeError) and not shortened:
        return "shorten"
    return Retry(str(report))


def after_unexpected(stage: Stage, error: Exception) -> DeadLetterCause:
    """Decide on a message for which a stage raised. Raises ``error`` again if it is one of :data:`PROCESS_ERRORS`."""
    if isinstance(error, PROCESS_ERRORS):
        raise error
    return DeadLetterCause(stage, "internal_error", f"{type(error).__name__}: {error}"[:500])
