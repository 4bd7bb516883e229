"""Light curves of a body, and what is said of them, whatever the format and the question."""

from collections.abc import Callable, Sequence, Sized
from functools import partial
from typing import TypeVar

from models.lightcurve import LightCurve, LightCurveError
from models.posterior import PriorError
from service.answers.replies import FieldError
from service.answers.writers import AskedPrior, ClassWriter, class_writer, usual_writer
from service.dataplane import Outcome, Refusal
from service.http.body.formats import JSON, Format
from service.http.body.forms import Answers, ForecastOptions, Options
from service.http.body.requests import Asked, InvalidCurve
from service.http.edge import errors
from service.http.edge.errors import ProblemError
from service.http.endpoint import INLINE_BYTES, LARGE_BYTES, Call
from service.registry.live import Lease

T = TypeVar("T")
ItemT = TypeVar("ItemT", bound=Sized)
OptionsT = TypeVar("OptionsT", bound=ForecastOptions)

Led = tuple[Sequence[Lease[ItemT]], Sequence[ItemT | LightCurveError | Refusal]]
"""The model to ask about each item, and the item or why it is not asked about."""


async def parsed(
    call: Call, data: bytes, read: Callable[[object], Asked[ItemT, OptionsT]], sent: Format = JSON
) -> Asked[ItemT, OptionsT]:
    """Items and options of a body in a format, here or, where it takes long, in a thread."""
    work = partial(_parse, data, sent, read, call)
    return await call.here_or_there(work, sent.slow_start or len(data) > INLINE_BYTES, len(data) > LARGE_BYTES)


def _parse(
    data: bytes, sent: Format, read: Callable[[object], Asked[ItemT, OptionsT]], call: Call
) -> Asked[ItemT, OptionsT]:
    assert sent.read is not None
    document = sent.read(data, call.settings)
    call.stopwatch.lap("decode")
    asked = read(document)
    call.stopwatch.lap("validate")
    return asked


def check_bare(asked: Asked[ItemT, OptionsT], outcomes: Sequence[Outcome]) -> None:
    """Refuse to answer a request that is a single light curve which failed: there is nothing else to tell (500)."""
    if asked.bare and outcomes[0].status == "failed":
        raise ProblemError(errors.INTERNAL, outcomes[0].detail)


def classified(
    writers: Sequence[ClassWriter],
    items: Sequence[LightCurve | InvalidCurve],
    outcomes: Sequence[Outcome],
    options: Options,
) -> Answers:
    """Say what became of light curves, ready to be written in any format.

    Parameters
    ----------
    writers : of the model asked about each; the reply is in the name of the first, and results of others name theirs.
    """
    replies, results = writers[0], []
    for writer, item, outcome in zip(writers, items, outcomes, strict=True):
        identity: dict[str, object] = {"object_id": item.object_id}
        result = writer.result(outcome, identity, faults(item), options.embedding, options.coverage)
        results.append(result if writer is replies else result | {"model": writer.provenance})
    return Answers(
        replies.provenance, replies.classes, replies.groups, replies.bands, replies.embedding_dim, results, options
    )


def one_model(lease: Lease[ItemT], items: Sequence[ItemT | InvalidCurve]) -> Led[ItemT]:
    """All items to one model."""
    return [lease] * len(items), items


def checked_prior(
    lease: Lease[LightCurve], prior: AskedPrior, usual: str, where: str = "/options/prior"
) -> ClassWriter:
    """Return what writes in the name of a classifier under class shares.

    Parameters
    ----------
    prior : that the request asks for.
    usual : name of those that hold where it asks for none, and the model has them.
    where : pointer to ``prior`` in the request.

    Raises
    ------
    ProblemError
        422 where the model cannot use what the request asks for.
    """
    try:
        return usual_writer(lease, usual) if prior is None else class_writer(lease, prior)
    except PriorError as error:
        fault = FieldError(pointer=where + error.pointer, reason=error.reason, detail=str(error))
        raise ProblemError(errors.INVALID, errors=[fault]) from None


def class_writers(
    leases: Sequence[Lease[LightCurve]], prior: AskedPrior, usual: str, where: str = "/options/prior"
) -> list[ClassWriter]:
    """Return the writer for each light curve, one object for all of a model; raises as :func:`checked_prior`."""
    made = {lease: checked_prior(lease, prior, usual, where) for lease in dict.fromkeys(leases)}
    return [made[lease] for lease in leases]


def faults(item: object) -> tuple[FieldError, ...]:
    """Values at fault in an item."""
    return item.errors if isinstance(item, InvalidCurve) else ()
