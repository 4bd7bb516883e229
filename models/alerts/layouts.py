"""Layout of a survey's packets: one :class:`Survey` says everything that this code has to know about it.

A module in :mod:`models.alerts.surveys`, with the record and the survey's own conversions, and its schemas are all that
a new survey takes: which packets are the survey's, how they are read and converted, which model classifies and what
replies say all follow from it. A new version that renames a field is one more alias. Aliases are tried in order against
the schema that the packet was written with, once for each schema.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightjar_alerts.models.alerts.photometry import Bands, Columns, Convert
from nightjar_alerts.models.photometry import filter_index

Aliases = Mapping[str, tuple[str, ...]]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observations:
    """One place in the packet that holds observations: a record or a list of records.

    Attributes
    ----------
    path : field of the packet.
    detections : whether the rows are detections (of the survey's pipeline), as opposed to forced photometry.
    required, optional : role to aliases. ``time``, ``band``, ``flux`` and ``flux_err`` are a point's own; a conversion
        may ask for others by any name. Numbers may be written as text; those of :data:`TEXT_ROLES` may be booleans.
    convert : turns the columns, by role, into photometry.
    """

    path: str
    detections: bool
    required: Aliases
    optional: Aliases
    convert: Convert


@dataclass(frozen=True, slots=True)
class PacketLayout:
    """One family of packets.

    Attributes
    ----------
    marks : fields by which a packet of the family is known.
    observations : in order of preference for one exposure: forced photometry, the alert's own detection, history.
    alert_id, source_id, object_id, moving_id : where an id may stand (of the alert, of the detection that caused it, of
        its object); the first that is neither null, 0 nor empty counts. The first moving id is that of the detection.
        A packet with a moving id belongs to the Solar System unless it has an object id as well; then it does if its
        detection does, and the object has no history.
    moving_name, moving_distance : name of the nearest known Solar System object and its distance in arcsec.
    moving_flags : fields by which a broker marks a known Solar System object, with the values that do.
    newest_of : list of detections whose newest row is the alert's own, where no field holds it; paths of ids name that
        row ``newest``. For JSON alerts.
    version : fields that state the schema version, for packets that brokers rewrote under another record name.
    metadata : record that holds metadata columns.
    context : values besides the light curve, by the names of :data:`models.metadata.KNOWN_COLUMNS`, and where they may
        stand; the first that is a number counts.
    njy_per_unit : nJy of a unit of flux, from the columns of every list by role; None where it is nJy.
    """

    marks: tuple[Path, ...]
    observations: tuple[Observations, ...]
    alert_id: tuple[Path, ...]
    source_id: tuple[Path, ...]
    object_id: tuple[Path, ...]
    moving_id: tuple[Path, ...] = ()
    moving_name: tuple[Path, ...] = ()
    moving_distance: tuple[Path, ...] = ()
    moving_flags: tuple[tuple[Path, tuple[object, ...]], ...] = ()
    newest_of: str = ""
    version: tuple[Path, ...] = ()
    metadata: str | None = None
    context: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    njy_per_unit: Callable[[Sequence[Columns]], float] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """One survey.

    Attributes
    ----------
    name : of one word; also the alias of the model that its packets are led to, where there is one.
    title : for people.
    bands : value in the packets to name of the filter (:data:`models.photometry.FILTERS`).
    layouts : of its packets, also those that brokers make of them; the first that fits is taken.
    record_name : full names of its Avro records, the version as the first group; None where names do not tell.
    bare : shipped schemas that are tried on records that come without any, the newest first.
    framed : whether the schema ids of Confluent framing are its versions.
    bundle : the shipped bundle (``name/version``) that answers its packets where the settings name no other; None
        where the default one does.
    """

    name: str
    title: str
    bands: Mapping[Any, str]
    layouts: tuple[PacketLayout, ...] = ()
    record_name: re.Pattern[str] | None = None
    bare: tuple[str, ...] = ()
    framed: bool = False
    bundle: str | None = None

    @property
    def filters(self) -> Bands:
        """Place of the filter in :data:`models.photometry.FILTERS` of each value."""
        return {value: filter_index(name) for value, name in self.bands.items()}


TEXT_ROLES: Final = frozenset({"sign", "status"})
