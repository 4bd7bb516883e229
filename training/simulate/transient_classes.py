"""Parameters of extragalactic explosions, one table per (sub)type.

Every parameter has a centre and a scatter, so classes overlap as in nature (Ia with Iax, 91bg and Ib/c; IIb with Ib/c;
SLSN with IIn and TDE). A class may be a mixture of subtypes. Times are rest-frame days, magnitudes are AB at rest 4800
Angstrom at maximum, before host dust. Values are rounded from these sources:
Ia, 91bg: Scolnic & Kessler 2016; Jha+ 2007 (colour against phase, host dust); Taubenberger 2017. Iax: Jha 2017.
Ib/c, IIb: Drout+ 2011; Richardson+ 2014 (luminosities); Taddia+ 2018. II: Anderson+ 2014 (plateaus, luminosities);
Li+ 2011 (shares of subtypes); Nyholm+ 2020 (IIn). SLSN: De Cia+ 2018; Nicholl+ 2017. PISN: Kasen+ 2011.
TDE: van Velzen+ 2021. KN: Kasen+ 2017; Villar+ 2017. CART (calcium-rich): De+ 2020. ILOT: Kashi & Soker 2016;
Cai+ 2021. Rate evolution: Kessler+ 2019 (PLAsTiCC models).

Phases are relative to the maximum of the bolometric light; as the spectrum cools, the maximum in B is two days later in
Ia, and V becomes brighter until the plateau of II. The spectral differences `IA`, `HYDROGEN` and `PARTLY_STRIPPED` were
adjusted to median colours of ELAsTiCC, so agreement with these is not an independent check.
"""

from dataclasses import dataclass
from typing import TypeAlias

Spread: TypeAlias = tuple[float, float]
"""Centre and scatter: normal for magnitudes, log-normal (scatter in e-folds) for all else."""


@dataclass(frozen=True)
class Population:
    """Numbers and brightness: ``share`` of the class, ``magnitude`` at maximum, volumetric rate (1+z)^rate_index.

    ``redshift`` is the range simulated and ``dust`` the mean of an exponential distribution of host A_V.
    """

    share: float
    magnitude: Spread
    redshift: tuple[float, float]
    rate_index: float
    dust: float = 0.15


@dataclass(frozen=True)
class Light:
    """Luminosity against time: fireball ``rise``, Gaussian ``fall``, and a slower component holding the share ``tail``.

    The tail fades as (1 + t / (p tail_time))^-p with p = ``tail_power`` (30 is nearly an exponential).
    ``stretch`` scatters all time scales together and ``stretch_slope`` is the magnitude change per e-fold of it
    (negative: slower is brighter). ``shock`` is the chance of an early shock-cooling peak.
    """

    rise: Spread
    fall: Spread
    tail: Spread
    tail_time: Spread
    tail_power: float = 30.0
    stretch: float = 0.1
    stretch_slope: float = 0.0
    shock: float = 0.0


@dataclass(frozen=True)
class Colour:
    """Temperature in kelvin, ``hot`` at maximum and ``cool`` at last, approached in ``cooling`` days.

    ``blanketing`` is the rest wavelength in Angstrom below which metal lines absorb the spectrum, or attenuate it by
    the power ``slope`` of the wavelength if given; ``bump`` the strength of a second maximum in the near infrared.
    """

    hot: Spread
    cool: Spread
    cooling: Spread
    blanketing: Spread
    bump: Spread = (0.0, 0.0)
    slope: float = 0.0


@dataclass(frozen=True)
class Plateau:
    """Duration of the plateau after maximum in days, and its decline rate in mag/day."""

    length: Spread = (0.0, 0.0)
    slope: Spread = (0.0, 0.0)


# Class-average departures from a blackbody in AB magnitudes (positive = fainter), at these rest wavelengths (Angstrom).
SED_NODES = (2500.0, 3300.0, 3900.0, 4500.0, 5400.0, 6300.0, 7300.0, 8500.0, 10000.0)
FEATURELESS = (0.0,) * len(SED_NODES)
IA = (0.9, 0.35, 0.0, -0.1, 0.1, 0.2, 0.6, 0.7, 0.75)
IAX = (0.7, 0.3, 0.02, -0.06, -0.06, 0.02, 0.18, 0.15, 0.2)
TITANIUM = (1.2, 0.6, 0.3, 0.1, -0.2, -0.05, 0.25, 0.25, 0.2)  # the blue trough of 1991bg
STRIPPED = (0.8, 0.4, 0.15, -0.05, -0.12, 0.05, 0.02, -0.15, 0.05)
PARTLY_STRIPPED = (0.6, 0.3, 0.2, 0.08, -0.06, -0.04, 0.03, 0.0, 0.05)
HYDROGEN = (-0.2, -0.25, -0.05, 0.08, -0.03, -0.06, 0.08, 0.05, 0.12)  # H alpha in emission
NARROW = (0.2, 0.05, -0.03, 0.0, 0.05, -0.25, 0.05, 0.02, 0.05)
OXYGEN = (0.0, 0.0, 0.05, 0.08, -0.02, 0.0, 0.0, -0.05, 0.0)
METAL_RICH = (0.8, 0.35, 0.12, 0.0, -0.05, 0.0, 0.02, -0.05, 0.0)
CALCIUM = (1.0, 0.6, 0.25, 0.0, -0.05, 0.0, -0.1, -0.45, 0.0)  # [Ca II] and the infrared triplet


@dataclass(frozen=True)
class Subtype:
    """One subtype."""

    population: Population
    light: Light
    colour: Colour
    plateau: Plateau = Plateau()
    spectrum: tuple[float, ...] = FEATURELESS


NORMAL_IA = Subtype(
    Population(share=1.0, magnitude=(-19.25, 0.13), redshift=(0.01, 1.1), rate_index=1.5, dust=0.2),
    Light(
        rise=(16.5, 0.05),
        fall=(11.7, 0.06),
        tail=(0.4, 0.12),
        tail_time=(45.0, 0.12),
        stretch=0.11,
        stretch_slope=-1.2,
    ),
    Colour(hot=(11000.0, 0.07), cool=(3700.0, 0.05), cooling=(13.0, 0.1), blanketing=(2750.0, 0.02), bump=(0.6, 0.25)),
    spectrum=IA,
)
"""Class Ia: fireball rise, width-luminosity relation, second infrared maximum (Scolnic & Kessler 2016; Kasen 2006)."""
LIKE_1991BG = Subtype(
    Population(share=1.0, magnitude=(-17.4, 0.45), redshift=(0.01, 0.6), rate_index=1.5, dust=0.05),
    Light(rise=(13.0, 0.09), fall=(9.0, 0.08), tail=(0.2, 0.15), tail_time=(30.0, 0.15), stretch_slope=-1.5),
    Colour(hot=(8300.0, 0.08), cool=(4400.0, 0.06), cooling=(10.0, 0.12), blanketing=(3600.0, 0.02)),
    spectrum=TITANIUM,
)
"""Class 91bg: fast, faint, red, in old galaxies, no second maximum (Taubenberger 2017)."""
LIKE_2002CX = Subtype(
    Population(share=1.0, magnitude=(-17.0, 0.9), redshift=(0.01, 0.7), rate_index=2.5, dust=0.2),
    Light(rise=(14.0, 0.18), fall=(9.8, 0.15), tail=(0.22, 0.25), tail_time=(45.0, 0.25), stretch_slope=-1.0),
    Colour(hot=(11000.0, 0.13), cool=(4900.0, 0.08), cooling=(11.0, 0.18), blanketing=(3250.0, 0.04)),
    spectrum=IAX,
)
"""Class Iax: slow ejecta, wide range of luminosity, weak second maximum (Jha 2017)."""
IB = Subtype(
    Population(share=0.45, magnitude=(-17.4, 0.7), redshift=(0.01, 0.6), rate_index=3.0, dust=0.45),
    Light(rise=(18.0, 0.16), fall=(12.0, 0.17), tail=(0.2, 0.25), tail_time=(60.0, 0.25), stretch=0.12),
    Colour(hot=(9500.0, 0.13), cool=(4900.0, 0.07), cooling=(13.0, 0.18), blanketing=(3600.0, 0.04)),
    spectrum=STRIPPED,
)
"""Class Ib/c, helium-rich (Drout+ 2011; Taddia+ 2018)."""
IC = Subtype(
    Population(share=0.4, magnitude=(-17.6, 0.7), redshift=(0.01, 0.6), rate_index=3.0, dust=0.45),
    Light(rise=(16.5, 0.2), fall=(11.5, 0.2), tail=(0.2, 0.25), tail_time=(55.0, 0.25), stretch=0.12),
    Colour(hot=(9300.0, 0.13), cool=(4800.0, 0.07), cooling=(12.0, 0.18), blanketing=(3700.0, 0.04)),
    spectrum=STRIPPED,
)
"""Class Ib/c, helium-poor (Drout+ 2011; Taddia+ 2018)."""
IC_BROAD_LINED = Subtype(
    Population(share=0.15, magnitude=(-18.5, 0.6), redshift=(0.01, 0.8), rate_index=3.0, dust=0.3),
    Light(rise=(14.5, 0.18), fall=(11.5, 0.2), tail=(0.2, 0.25), tail_time=(50.0, 0.25), stretch=0.12),
    Colour(hot=(10500.0, 0.13), cool=(5000.0, 0.07), cooling=(12.0, 0.18), blanketing=(3600.0, 0.04)),
    spectrum=STRIPPED,
)
"""Class Ib/c, fast ejecta: brighter and bluer (Drout+ 2011; Taddia+ 2018)."""
IIB = Subtype(
    Population(share=1.0, magnitude=(-17.7, 0.9), redshift=(0.01, 0.6), rate_index=3.0, dust=0.5),
    Light(rise=(20.0, 0.14), fall=(12.0, 0.15), tail=(0.2, 0.22), tail_time=(50.0, 0.22), stretch=0.12, shock=0.6),
    Colour(hot=(7000.0, 0.12), cool=(4000.0, 0.07), cooling=(13.0, 0.18), blanketing=(3150.0, 0.05)),
    spectrum=PARTLY_STRIPPED,
)
"""Class SN-like/Other: a little hydrogen, often a first peak of shock cooling (Richardson+ 2014; Taddia+ 2018)."""
IIP = Subtype(
    Population(share=0.75, magnitude=(-16.5, 0.9), redshift=(0.005, 0.5), rate_index=3.0, dust=0.15),
    Light(rise=(9.0, 0.3), fall=(8.0, 0.3), tail=(0.09, 0.35), tail_time=(110.0, 0.08)),
    Colour(hot=(15000.0, 0.2), cool=(4700.0, 0.08), cooling=(17.0, 0.3), blanketing=(2200.0, 0.08)),
    plateau=Plateau(length=(88.0, 0.2), slope=(0.008, 0.6)),
    spectrum=HYDROGEN,
)
"""Class II, plateau of three months, then a drop to the nickel tail (Anderson+ 2014)."""
IIL = Subtype(
    Population(share=0.12, magnitude=(-17.4, 0.6), redshift=(0.005, 0.6), rate_index=3.0, dust=0.15),
    Light(rise=(10.0, 0.25), fall=(15.0, 0.3), tail=(0.1, 0.35), tail_time=(100.0, 0.1)),
    Colour(hot=(15000.0, 0.2), cool=(4700.0, 0.08), cooling=(17.0, 0.3), blanketing=(2200.0, 0.08)),
    plateau=Plateau(length=(55.0, 0.3), slope=(0.024, 0.35)),
    spectrum=HYDROGEN,
)
"""Class II, linear decline (Anderson+ 2014)."""
IIN = Subtype(
    Population(share=0.13, magnitude=(-18.8, 1.1), redshift=(0.01, 1.6), rate_index=3.0, dust=0.35),
    Light(rise=(22.0, 0.45), fall=(24.0, 0.4), tail=(0.25, 0.4), tail_time=(60.0, 0.4)),
    Colour(hot=(17000.0, 0.3), cool=(5600.0, 0.2), cooling=(32.0, 0.4), blanketing=(2000.0, 0.1)),
    spectrum=NARROW,
)
"""Class II, narrow lines: shock in circumstellar gas, wide range of luminosity and time scale (Nyholm+ 2020)."""
SUPERLUMINOUS = Subtype(
    Population(share=1.0, magnitude=(-21.5, 0.7), redshift=(0.05, 2.8), rate_index=3.5, dust=0.1),
    Light(rise=(38.0, 0.35), fall=(35.0, 0.35), tail=(0.3, 0.35), tail_time=(70.0, 0.35), stretch_slope=-0.3),
    Colour(hot=(15500.0, 0.15), cool=(6800.0, 0.12), cooling=(35.0, 0.3), blanketing=(3300.0, 0.1), slope=1.5),
    spectrum=OXYGEN,
)
"""Class SLSN: hot, slow, fed by a magnetar (De Cia+ 2018; Nicholl+ 2017), bright in the ultraviolet (Gomez+ 2024)."""
PAIR_INSTABILITY = Subtype(
    Population(share=1.0, magnitude=(-20.6, 0.8), redshift=(0.05, 1.6), rate_index=3.0, dust=0.1),
    Light(rise=(115.0, 0.22), fall=(75.0, 0.22), tail=(0.35, 0.3), tail_time=(110.0, 0.2), stretch_slope=-0.6),
    Colour(hot=(9500.0, 0.15), cool=(4800.0, 0.1), cooling=(80.0, 0.25), blanketing=(3500.0, 0.05)),
    spectrum=METAL_RICH,
)
"""Class PISN: a rise of months, red by line blanketing (Kasen+ 2011)."""
TIDAL_DISRUPTION = Subtype(
    Population(share=1.0, magnitude=(-19.3, 0.9), redshift=(0.02, 1.4), rate_index=-3.0),
    Light(rise=(27.0, 0.35), fall=(30.0, 0.3), tail=(0.75, 0.15), tail_time=(45.0, 0.45), tail_power=5.0 / 3.0),
    Colour(hot=(21000.0, 0.28), cool=(24000.0, 0.28), cooling=(150.0, 0.3), blanketing=(1200.0, 0.05)),
)
"""Class TDE: constant high temperature, fall-back tail of power 5/3 (van Velzen+ 2021)."""
BLUE_KILONOVA = Subtype(
    Population(share=0.6, magnitude=(-15.3, 0.7), redshift=(0.002, 0.25), rate_index=1.0, dust=0.1),
    Light(rise=(0.7, 0.35), fall=(1.1, 0.3), tail=(0.35, 0.4), tail_time=(1.6, 0.3), tail_power=3.0, stretch=0.25),
    Colour(hot=(6900.0, 0.22), cool=(2600.0, 0.1), cooling=(1.6, 0.3), blanketing=(3000.0, 0.1)),
)
"""Class KN, lanthanide-poor ejecta: days long (Kasen+ 2017; Villar+ 2017)."""
RED_KILONOVA = Subtype(
    Population(share=0.4, magnitude=(-14.0, 0.9), redshift=(0.002, 0.2), rate_index=1.0, dust=0.1),
    Light(rise=(1.1, 0.35), fall=(2.6, 0.35), tail=(0.35, 0.4), tail_time=(3.0, 0.3), tail_power=3.0, stretch=0.25),
    Colour(hot=(4600.0, 0.18), cool=(2300.0, 0.1), cooling=(2.8, 0.35), blanketing=(3800.0, 0.1)),
)
"""Class KN, lanthanide-rich ejecta: a week long, red from the start (Kasen+ 2017; Villar+ 2017)."""
CALCIUM_RICH = Subtype(
    Population(share=1.0, magnitude=(-15.8, 0.6), redshift=(0.003, 0.25), rate_index=1.0, dust=0.05),
    Light(rise=(12.0, 0.16), fall=(8.0, 0.2), tail=(0.18, 0.25), tail_time=(35.0, 0.3)),
    Colour(hot=(8000.0, 0.14), cool=(4500.0, 0.08), cooling=(9.0, 0.2), blanketing=(3700.0, 0.04)),
    spectrum=CALCIUM,
)
"""Class CART: faint, fast, far from old galaxies, calcium lines in emission (De+ 2020)."""
INTERMEDIATE = Subtype(
    Population(share=0.6, magnitude=(-13.0, 1.0), redshift=(0.0008, 0.06), rate_index=1.0, dust=0.4),
    Light(rise=(9.0, 0.45), fall=(20.0, 0.4), tail=(0.15, 0.5), tail_time=(60.0, 0.4)),
    Colour(hot=(6600.0, 0.14), cool=(3500.0, 0.1), cooling=(35.0, 0.4), blanketing=(3400.0, 0.08)),
    plateau=Plateau(length=(30.0, 0.6), slope=(0.012, 0.5)),
    spectrum=NARROW,
)
"""Class ILOT, intermediate-luminosity red transients (Cai+ 2021)."""
RED_NOVA = Subtype(
    Population(share=0.4, magnitude=(-12.0, 1.2), redshift=(0.0008, 0.05), rate_index=1.0, dust=0.5),
    Light(rise=(14.0, 0.5), fall=(14.0, 0.4), tail=(0.2, 0.5), tail_time=(45.0, 0.4)),
    Colour(hot=(5300.0, 0.14), cool=(3000.0, 0.1), cooling=(30.0, 0.4), blanketing=(3600.0, 0.08)),
    plateau=Plateau(length=(50.0, 0.5), slope=(0.008, 0.5)),
    spectrum=NARROW,
)
"""Class ILOT, luminous red novae of stellar mergers (Kashi & Soker 2016; Cai+ 2021)."""

KINDS: dict[str, tuple[Subtype, ...]] = {
    "Ia": (NORMAL_IA,),
    "91bg": (LIKE_1991BG,),
    "Iax": (LIKE_2002CX,),
    "Ib/c": (IB, IC, IC_BROAD_LINED),
    "SN-like/Other": (IIB,),
    "II": (IIP, IIL, IIN),
    "SLSN": (SUPERLUMINOUS,),
    "PISN": (PAIR_INSTABILITY,),
    "TDE": (TIDAL_DISRUPTION,),
    "KN": (BLUE_KILONOVA, RED_KILONOVA),
    "CART": (CALCIUM_RICH,),
    "ILOT": (INTERMEDIATE, RED_NOVA),
}
