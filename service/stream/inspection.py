"""The command ``nightjar dead-letters``: print dead letters without answering or removing them."""

import sys
from collections import Counter

from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import AddressError
from nightjar_alerts.service.stream.connectors import open_source
from nightjar_alerts.service.stream.dead_letters import PREFIX, describe
from nightjar_alerts.service.stream.files import FileSource
from nightjar_alerts.service.stream.messages import FiniteSource

POLL_MESSAGES = 100
POLL_SECONDS = 1.0


def print_dead_letters(address: str) -> int:
    """Print the dead letters at an address, and their number by stage and reason. Returns the exit status.

    Raises
    ------
    AddressError
        When the address cannot be read.
    """
    settings = StreamSettings()
    settings = settings.model_copy(update={"source": address or settings.dead_letters})
    try:
        source = open_source(settings, replay=True)
    except AddressError as error:  # the address is not the setting's
        raise AddressError(str(error).removeprefix("NIGHTJAR_SOURCE=")) from None
    reasons: Counter[str] = Counter()
    while messages := source.poll(POLL_MESSAGES, POLL_SECONDS):
        for message in messages:
            facts = {name: value.decode(errors="replace") for name, value in message.headers}
            stage, reason = facts.get(f"{PREFIX}stage", ""), facts.get(f"{PREFIX}reason", "not a dead letter")
            reasons[f"{stage} {reason}".strip()] += 1
            sys.stdout.write(f"{describe(message)}\n")
    for cause, count in reasons.most_common():
        sys.stdout.write(f"{count} {cause}\n")
    if not reasons:
        sys.stdout.write(f"no dead letters in {settings.source}\n")
    source.close()
    unreadable = source.unreadable if isinstance(source, FileSource) else {}
    for name, reason in unreadable.items():
        sys.stdout.write(f"not read: {name}: {reason}\n")
    unmatched = source.unmatched if isinstance(source, FiniteSource) else ()
    for reason in unmatched:
        sys.stdout.write(f"{reason}\n")
    return 1 if unmatched else 3 if unreadable else 0
