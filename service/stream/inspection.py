"""The command ``nightjar dead-letters``: print dead letters without acknowledging or removing them."""

import sys
from collections import Counter

from nightjar_alerts.service.settings import StreamSettings
from nightjar_alerts.service.stream.addresses import AddressError, without_secrets
from nightjar_alerts.service.stream.connectors import open_source
from nightjar_alerts.service.stream.dead_letters import PREFIX, describe, printable
from nightjar_alerts.service.stream.files import FileSource
from nightjar_alerts.service.stream.messages import FiniteSource, TransientError

POLL_MESSAGES = 100
POLL_SECONDS = 1.0


def print_dead_letters(address: str) -> int:
    """Print the dead letters at an address, and their number by stage and reason. Returns the exit status.

    Raises
    ------
    AddressError
        If the address cannot be read, or its broker does not respond.
    """
    settings = StreamSettings()
    settings = settings.model_copy(update={"source": address or settings.dead_letters})
    try:
        source = open_source(settings, replay=True)
    except AddressError as error:  # the address is not the setting's
        raise AddressError(str(error).removeprefix("NIGHTJAR_SOURCE=")) from None
    causes: Counter[str] = Counter()
    try:
        while messages := source.poll(POLL_MESSAGES, POLL_SECONDS):
            for message in messages:
                facts = {name: printable(value.decode(errors="replace")) for name, value in message.headers}
                stage, reason = facts.get(f"{PREFIX}stage", ""), facts.get(f"{PREFIX}reason", "not a dead letter")
                causes[f"{stage} {reason}".strip()] += 1
                sys.stdout.write(f"{describe(message)}\n")
    except TransientError as error:
        raise AddressError(str(error)) from None
    finally:
        source.close()
    for cause, count in causes.most_common():
        sys.stdout.write(f"{count} {cause}\n")
    if not causes:
        sys.stdout.write(f"no dead letters in {without_secrets(settings.source)}\n")
    unreadable = source.unreadable if isinstance(source, FileSource) else {}
    for name, reason in unreadable.items():
        sys.stdout.write(f"not read: {name}: {reason}\n")
    unmatched = source.unmatched if isinstance(source, FiniteSource) else ()
    for reason in unmatched:
        sys.stdout.write(f"{reason}\n")
    return 1 if unmatched else 3 if unreadable else 0
