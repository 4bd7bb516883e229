"""Layouts of surveys' packets: a :class:`Survey` describes everything that depends on the survey.

To add a survey, add a module with its :class:`Survey` and conversions to :mod:`alerts.surveys`, and its schemas.
They determine which packets belong to the survey, how they are decoded and converted, and which model classifies them.
If a new version renames a field, add an alias. Aliases are tried in order against the writer schema, once per schema.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightjar_alerts.alerts.photometry import Bands, Convert, PhotometryColumns
from nightjar_alerts.models.photometry import filter_index

Aliases = Mapping[str, tuple[str, ...]]
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observations:
    """Field of the packet with observations: a record or a list of records.

    Attributes
    ----------
    path : name of the field.
    detections : whether the rows are detections (of the survey's pipeline), as opposed to forced photometry.
    required, optional : role to aliases. The roles are ``time``, ``band``, ``flux``, ``flux_err`` and any others that
        the conversion uses. Numbers may be strings; values of :data:`TEXT_ROLES` may be booleans.
    convert : converts the columns, by role, to photometry.
    """

    path: str
    detections: bool
    required: Aliases
    optional: Aliases
    convert: Convert


@dataclass(frozen=True, slots=True)
class PacketLayout:
    """Layout of one kind of packets.

    Attributes
    ----------
    marks : fields by which packets of this kind are recognised.
    observations : in order of preference for one exposure: forced photometry, detection of the alert, history.
    alert_id, source_id, object_id, moving_id : possible fields of an id (of the alert, of the detection that caused it,
        of its object, of its Solar System object); the first that is neither null, 0 nor empty is used. The first
        moving id is that of the detection. A packet with a moving id belongs to the Solar System unless it also has an
        object id; then it does if its detection does and the object has no history.
    moving_name, moving_distance : name of the nearest known Solar System object and its distance in arcsec.
    moving_flags : fields with which a broker marks a known Solar System object, and the values that do.
    newest_of : list of detections whose newest row is that of the alert, if no field has it; paths of ids call this row
        ``newest``. For JSON alerts.
    version : fields with the schema version, for packets that brokers rewrote under another record name.
    metadata : record with metadata columns.
    context : possible fields of each context value, by the names of :data:`models.metadata.KNOWN_COLUMNS`; the first
        one that is a number is used.
    position : possible fields of right ascension and declination, degrees; the first valid pair is used.
    njy_per_unit : computes nJy per flux unit from the columns of all lists by role; None if fluxes are in nJy.
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
    position: tuple[tuple[Path, Path], ...] = ()
    njy_per_unit: Callable[[Sequence[PhotometryColumns]], float] | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """Survey, its packets and its model.

    Attributes
    ----------
    name : one word; also the alias of the model for its packets, if there is one.
    title : name for people.
    bands : value in the packets to name of the filter (:data:`models.photometry.FILTERS`).
    layouts : layouts of its packets, including those rewritten by brokers; the first match is used.
    record_name : pattern of the full names of its Avro records, with the version as the first group; None if names do
        not identify the survey.
    bare : shipped schemas to try on bare records, the newest first.
    framed : whether its versions are the schema ids of Confluent framing.
    bundle : shipped bundle (``name/version``) for its packets unless the settings name another; None for the default
        bundle.
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
        """Index into :data:`models.photometry.FILTERS` of each value."""
        return {value: filter_index(name) for value, name in self.bands.items()}


TEXT_ROLES: Final = frozenset({"sign", "status"})
