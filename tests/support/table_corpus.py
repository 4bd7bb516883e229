"""Layouts of public tables of light curves, with what an astronomer reads in them.

Each entry has its public source, a small table in that layout, and the filter, time (MJD), flux and error (nJy) of its
points. These follow from magnitudes by arithmetic alone: nothing here imports the package under test.
"""

# ruff: noqa: E501  # lines of names are those of the surveys

import math
from dataclasses import dataclass, field

MJD = [58_700.25 + 3.0 * step for step in range(8)]
MAG = [19.5, 19.1, 18.7, 18.4, 18.5, 18.8, 19.2, 19.6]
ERR = [0.09, 0.07, 0.05, 0.04, 0.04, 0.05, 0.07, 0.1]
PER_MAG = 2.5 / math.log(10.0)
NJY_ZERO_POINT = 31.4
# AB magnitude of Vega: Blanton & Roweis 2007; Gaia: Riello et al. 2021; C is unfiltered, on the V scale.
VEGA = {"U": 0.79, "B": -0.09, "V": 0.02, "R": 0.21, "I": 0.45, "G": 0.114, "BP": 0.016, "RP": 0.356, "C": 0.02}
TAI_MINUS_UTC = 37.0
ZTF_SECONDS = TAI_MINUS_UTC + 15.0  # from UTC at the start of an exposure of 30 s to TAI at its middle
GAIA_ZERO_POINTS = {"G": 25.6874, "BP": 25.3385, "RP": 24.7479}  # Vega, Gaia EDR3


def njy(mag: float) -> float:
    return 10 ** (-0.4 * (mag - NJY_ZERO_POINT))


def iso(mjd: float) -> str:
    days = int(mjd) - 58_700  # 2019-08-05
    hour, minute = divmod(round(24 * 60 * (mjd % 1)), 60)
    month, day = (8, 5 + days) if days < 27 else (9, days - 26)
    return f"2019-{month:02}-{day:02}T{hour:02}:{minute:02}:00"


@dataclass
class Entry:
    """Layout of a table.

    Attributes
    ----------
    header, row : lines of names and of values. bands : filter of each name in the table, in turns.
    vega : whether magnitudes are Vega's in the filters of :data:`VEGA`. seconds : added to the times.
    left_out : number of points that are not used. extra : further rows. before : lines in front of the table.
    zero_points : of fluxes in counts, by filter.
    opened : where names, units and zero points were compared with the source, or a public copy of it, in November 2026;
        empty if the source could not be opened, so that the layout is from memory. negative: whether all fluxes are.
    """

    name: str
    source: str
    header: str
    row: str
    bands: dict[str, str] = field(default_factory=lambda: {"g": "g", "r": "r"})
    file: str = "table.csv"
    objects: tuple[str, ...] = ("table",)
    vega: bool = False
    seconds: float = 0.0
    before: str = ""
    extra: str = ""
    left_out: int = 0
    zero_points: dict[str, float] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    opened: str = ""
    negative: bool = False

    def text(self) -> str:
        """Return the table."""
        names = list(self.bands)
        rows = []
        for k in range(8):
            mag, err, band = MAG[k], ERR[k], names[k % len(names)]
            flux = njy(mag)
            zero_point = self.zero_points.get(self.bands[band], 25.0)
            dn = 10 ** (-0.4 * (mag - zero_point))
            rows.append(
                self.row.format(
                    k=k, date=f"{iso(MJD[k])[:10]}.25", mjd=MJD[k], jd=MJD[k] + 2_400_000.5, rjd=MJD[k] + 0.5, iso=iso(MJD[k]), mag=mag, err=err,
                    band=band, njy=flux, njye=flux * err / PER_MAG, ujy=flux / 1e3, ujye=flux * err / PER_MAG / 1e3,
                    mjy=flux / 1e6, mjye=flux * err / PER_MAG / 1e6, cal=flux / njy(27.5), cale=flux * err / PER_MAG / njy(27.5),
                    dn=dn, dne=dn * err / PER_MAG, zp=zero_point, nmgy=flux / njy(22.5), ivar=(njy(22.5) * PER_MAG / (flux * err)) ** 2,
                    mgy=flux / njy(0.0), mgyivar=(njy(0.0) * PER_MAG / (flux * err)) ** 2, jy=flux / 1e9, jye=flux * err / PER_MAG / 1e9,
                    mmag=1e3 * err, unix=(MJD[k] - 40_587) * 86_400, ms=round((MJD[k] - 40_587) * 86_400_000), gaia=MJD[k] - 55_197.0, m50=MJD[k] - 50_000,
                    ogle=MJD[k] + 0.5 - 50_000, year=2000 + (MJD[k] - 51_544) / 365.25, snr=PER_MAG / err,
                )
            )  # fmt: skip
        return "\n".join([*filter(None, [self.before, self.header]), *rows, *filter(None, [self.extra])]) + "\n"

    def points(self) -> list[tuple[str, float, float, float]]:
        """Return the filter, time, flux and error of each point."""
        names, found = list(self.bands), []
        for k in range(8):
            band = self.bands[names[k % len(names)]]
            flux = njy(MAG[k] + (VEGA.get(band, 0.0) if self.vega else 0.0)) * (-1 if self.negative else 1)
            found.append((band, MJD[k] + self.seconds / 86_400, flux, abs(flux) * ERR[k] / PER_MAG))
        return found


G, R = {"g": "g"}, {"r": "r"}
CORPUS = [
    Entry(
        "Johnson-Cousins in a paper",
        "https://ui.adsabs.harvard.edu/abs/1992AJ....104..340L",
        "SN,MJD,Filter,mag,e_mag",
        "SN 2019a,{mjd},{band},{mag},{err}",
        {"B": "B", "V": "V", "R": "R", "I": "I"},
        vega=True,
        objects=("SN 2019a",),
    ),
    Entry(
        "VizieR, JD-2400000 with e_X",
        "https://vizier.cds.unistra.fr/vizier/doc/catstd-3.3.htx",
        "SN,JD-2400000,Vmag,e_Vmag",
        "2019a,{rjd},{mag},{err}",
        {"V": "V"},
        vega=True,
        objects=("2019a",),
    ),
    Entry(
        "VizieR TSV with units and a rule",
        "https://vizier.cds.unistra.fr/doc/asu-summary.htx",
        "SN\tMJD\tFilt\tmag\te_mag",
        "2019a\t{mjd}\t{band}\t{mag}\t{err}",
        before="#Column\tSN\t(A6)\n#Column\tMJD\t(F9.3)",
        file="asu.tsv",
        objects=("2019a",),
    ),
    Entry(
        "AAS machine-readable table",
        "https://journals.aas.org/mrt-standards/",
        "",
        "2019a  {mjd:9.3f} {band} {mag:6.3f} {err:5.3f}",
        file="tab.txt",
        objects=("2019a",),
        before="Title: SN 2019a\nTable: Photometry\n================================================================================\nByte-by-byte Description of file: t_mrt.txt\n--------------------------------------------------------------------------------\n   Bytes Format Units  Label   Explanations\n--------------------------------------------------------------------------------\n   1-  5 A5     ---    SN      Name\n   8- 16 F9.3   d      MJD     Modified Julian date\n  18- 18 A1     ---    Filt    Filter\n  20- 25 F6.3   mag    mag     Magnitude\n  27- 31 F5.3   mag    e_mag   Uncertainty in mag\n--------------------------------------------------------------------------------",
    ),
    Entry(
        "ZTF alerts of Fink",
        "https://fink-portal.org/api",
        "i:objectId,i:jd,i:fid,i:magpsf,i:sigmapsf,i:isdiffpos,d:tag",
        "ZTF1,{jd},{band},{mag},{err},t,valid",
        {"1": "g", "2": "r"},
        seconds=ZTF_SECONDS,
        objects=("ZTF1",),
        extra="ZTF1,2458800.5,1,18.0,0.05,t,badquality",
        left_out=1,
    ),
    Entry(
        "ZTF detections of ALeRCE",
        "https://alerce.readthedocs.io",
        "oid,candid,mjd,fid,pid,isdiffpos,magpsf,sigmapsf,rbversion,ra,dec",
        "ZTF1,9{k},{mjd},{band},1{k},1,{mag},{err},t12_f5_c3,10.1,20.2",
        {"1": "g", "2": "r"},
        seconds=ZTF_SECONDS,
        objects=("ZTF1",),
    ),
    Entry(
        "ZTF alert history without a name",
        "https://zwickytransientfacility.github.io/ztf-avro-alert/",
        "jd,fid,programid,magpsf,sigmapsf,isdiffpos",
        "{jd},{band},1,{mag},{err},t",
        {"1": "g", "2": "r"},
        seconds=ZTF_SECONDS,
    ),
    Entry(
        "ZTF forced photometry service",
        "https://irsa.ipac.caltech.edu/data/ZTF/docs/ztf_zfps_userguide.pdf",
        "index, field, filter, infobitssci, jd, forcediffimflux, forcediffimfluxunc, zpdiff, procstatus",
        "{k} 600 {band} 0 {jd} {dn} {dne} {zp} 0",
        {"ZTF_g": "g", "ZTF_r": "r"},
        file="fp.txt",
        objects=("fp",),
        seconds=ZTF_SECONDS,
        extra="9 600 ZTF_g 0 2458800.5 -99999 -99999 25.0 61",
        left_out=1,
    ),
    Entry(
        "ZTF forced photometry of alerts",
        "https://zwickytransientfacility.github.io/ztf-avro-alert/schema.html",
        "objectId,jd,fid,forcediffimflux,forcediffimfluxunc,magzpsci,procstatus,programid",
        "ZTF1,{jd},{band},{dn},{dne},{zp},0,1",
        {"1": "g", "2": "r"},
        seconds=ZTF_SECONDS,
        objects=("ZTF1",),
        extra="ZTF1,2458800.5,1,-99999,12.0,25.0,61,1",
        left_out=1,
    ),
    Entry(
        "ZTF data release at IRSA",
        "https://irsa.ipac.caltech.edu/docs/program_interface/ztf_lightcurve_api.html",
        "oid,expid,hjd,mjd,mag,magerr,catflags,filtercode,ra,dec",
        "68,1{k},{jd},{mjd},{mag},{err},0,{band},10,20",
        {"zg": "g", "zr": "r"},
        objects=("68",),
        extra="68,99,2458800.5,58800.0,18.0,0.05,32768,zg,10,20",
        left_out=1,
        opened="irsa.ipac.caltech.edu/docs/program_interface/ztf_lightcurve_api.html",
    ),
    Entry(
        "ZTF data release of SNAD",
        "https://ztf.snad.space/",
        "oid,filter,mjd,mag,magerr,clrcoeff",
        "68,{band},{mjd},{mag},{err},0.1",
        {"zg": "g", "zr": "r"},
        objects=("68",),
    ),
    Entry(
        "ANTARES",
        "https://nsf-noirlab.gitlab.io/csdc/antares/client/",
        "time,ant_mjd,ant_survey,ant_ra,ant_dec,ant_passband,ant_mag,ant_magerr,ant_maglim",
        "{iso}Z,{mjd},1,1.0,2.0,{band},{mag},{err},20.6",
        {"g": "g", "R": "r"},
        seconds=ZTF_SECONDS,
    ),
    Entry(
        "Lasair",
        "https://lasair-ztf.lsst.ac.uk/api",
        "MJD,filter,unforced mag,unforced mag error,unforced mag status,limiting mag",
        "{mjd},{band},{mag},{err},positive,20.1",
        opened="public readers of Lasair's tables (unforced mag status)",
    ),
    Entry(
        "ATLAS forced photometry",
        "https://fallingstar-data.com/forcedphot/resultdesc/",
        "###MJD m dm uJy duJy F err chi/N RA Dec x y maj min phi apfit mag5sig Sky Obs",
        "{mjd} {mag} {err} {ujy} {ujye} {band} 0 1.1 110.1 -20.2 1 2 2 2 -40 -0.4 19.5 20 01a{k}",
        {"c": "c", "o": "o"},
        file="AT2019a.txt",
        objects=("AT2019a",),
        opened="fallingstar-data.com/forcedphot/resultdesc",
    ),
    Entry(
        "ATLAS of the transient server",
        "https://star.pst.qub.ac.uk/sne/atlas4/",
        "MJD,F,uJy,duJy",
        "{mjd},{band},{ujy},{ujye}",
        {"c": "c", "o": "o"},
    ),
    Entry(
        "ASAS-SN Sky Patrol 1",
        "https://asas-sn.osu.edu/",
        "HJD,UT Date,Camera,FWHM,Limit,mag,mag_err,flux(mJy),flux_err,Filter",
        "{jd},2019-08-05,bA,1.5,17.5,{mag},{err},{mjy},{mjye},{band}",
        {"g": "g"},
        opened="source of AAVSO's VStar, plug-in for ASAS-SN",
    ),
    Entry(
        "ASAS-SN Sky Patrol 2",
        "http://asas-sn.ifa.hawaii.edu/skypatrol/",
        "JD,Flux,Flux Error,Mag,Mag Error,Limit,FWHM,Filter,Quality,Camera",
        "{jd},{mjy},{mjye},{mag},{err},17.5,1.5,{band},G,bi",
        {"g": "g"},
        extra="2458800.5,1.0,0.1,16.0,0.1,17.5,1.5,g,B,bi",
        left_out=1,
    ),
    Entry(
        "Gaia epoch photometry",
        "https://gea.esac.esa.int/archive/documentation/GDR3/Gaia_archive/chap_datamodel/sec_dm_photometry/ssec_dm_epoch_photometry.html",
        "source_id,transit_id,band,time,mag,flux,flux_error,flux_over_error,rejected_by_photometry",
        "40,1{k},{band},{gaia},{mag},{dn},{dne},{snr},False",
        {"G": "G", "BP": "BP"},
        vega=True,
        zero_points=GAIA_ZERO_POINTS,
        objects=("40",),
        extra="40,99,G,3500.0,15.0,20000,20,1000,True",
        left_out=1,
        opened="aanda.org/articles/aa/full_html/2023/06/aa44204-22/T1.html",
    ),
    Entry(
        "Gaia epoch photometry with units",
        "https://www.cosmos.esa.int/web/gaia-users/archive/datalink-products",
        "source_id,transit_id,band,time,mag,flux ('electron'.s**-1),flux_error ('electron'.s**-1),flux_over_error",
        "40,1{k},{band},{gaia},{mag},{dn},{dne},{snr}",
        {"G": "G", "BP": "BP"},
        vega=True,
        zero_points=GAIA_ZERO_POINTS,
        objects=("40",),
        opened="gea.esac.esa.int/archive/documentation/GDR3, 20.7.1",
    ),
    Entry(
        "AAVSO download",
        "https://www.aavso.org/data-download",
        "JD,Magnitude,Uncertainty,HQuncertainty,Band,Observer Code,Comment Code(s),Star Name,Validation Flag",
        "{jd},{mag},{err},,{band},XYZ,,SS CYG,V",
        {"V": "V", "B": "B"},
        file="aavsodata.txt",
        vega=True,
        objects=("SS CYG",),
        opened="mintaka.aavso.org/index.php/format-data-file",
    ),
    Entry(
        "AAVSO extended format",
        "https://www.aavso.org/aavso-extended-file-format",
        "#NAME,DATE,MAG,MERR,FILT,TRANS,MTYPE,CNAME,CMAG",
        "SS CYG,{jd},{mag},{err},{band},NO,STD,ENSEMBLE,na",
        {"V": "V", "B": "B"},
        vega=True,
        objects=("SS CYG",),
    ),
    Entry(
        "SNANA text",
        "https://github.com/RickKessler/SNANA",
        "VARLIST: MJD BAND FIELD FLUXCAL FLUXCALERR ZPFLUX PHOTFLAG",
        "OBS: {mjd} {band} C1 {cal} {cale} 31.2 4096",
        file="sn.dat",
        before="SURVEY: DES\nSNID: 1248\nFILTERS: griz\nNOBS: 8\nNVAR: 7",
        objects=("1248",),
        extra="END:",
    ),
    Entry(
        "SNANA text with ZP_FLUXCAL",
        "https://github.com/RickKessler/SNANA/issues/1531",
        "VARLIST: MJD BAND FIELD FLUXCAL FLUXCALERR",
        "OBS: {mjd} {band} C1 {njy} {njye}",
        file="sn.dat",
        before="SURVEY: LSST\nSNID: 1248\nZP_FLUXCAL: 31.4\nNOBS: 8\nNVAR: 5",
        objects=("1248",),
        extra="END:",
    ),
    Entry(
        "SNANA text with more names than NVAR",
        "https://github.com/sncosmo/sncosmo/blob/master/sncosmo/tests/data/snana_ascii_example.dat",
        "VARLIST: MJD FLT FIELD FLUXCAL FLUXCALERR MAG",
        "OBS: {mjd} {band} NULL {cal} {cale}",
        file="sn.dat",
        before="SURVEY: SDSS\nSNID: 1032\nNVAR: 5",
        objects=("1032",),
        extra="END:",
    ),
    Entry(
        "SNANA table with ZEROPT",
        "https://github.com/RickKessler/SNANA/blob/master/doc/snana_manual.pdf",
        "CID,MJD,BAND,FLUXCAL,FLUXCALERR,ZEROPT,PHOTFLAG",
        "7,{mjd},{band},{cal},{cale},31.2,4096",
        objects=("7",),
    ),
    Entry(
        "DES five-year photometry",
        "https://zenodo.org/records/12720778",
        "CID,MJD,BAND,FLUXCAL,FLUXCALERR,PHOTFLAG",
        "125,{mjd},{band},{cal},{cale},0",
        objects=("125",),
    ),
    Entry(
        "PLAsTiCC",
        "https://www.kaggle.com/c/PLAsTiCC-2018/data",
        "object_id,mjd,passband,flux,flux_err,detected",
        "615,{mjd},{band},{cal},{cale},1",
        {"1": "g", "2": "r"},
        objects=("615",),
    ),
    Entry(
        "MALLORN",
        "https://www.kaggle.com/competitions/mallorn-astronomical-classification-challenge",
        "object_id,Time (MJD),Flux,Flux_err,Filter",
        "a,{mjd},{ujy},{ujye},{band}",
        objects=("a",),
    ),
    Entry(
        "Rubin DiaSource",
        "https://sdm-schemas.lsst.io/apdb.html",
        "diaSourceId,diaObjectId,ssObjectId,midpointMjdTai,band,psfFlux,psfFluxErr,psfFlux_flag,pixelFlags_saturated",
        "{k},61,0,{mjd},{band},{njy},{njye},False,False",
        objects=("61",),
        extra="9,61,0,58800.0,g,9e6,130,True,False\n10,0,21163615805847120,58801.0,g,4000,120,False,False",
        left_out=1,
    ),
    Entry(
        "Rubin forced photometry",
        "https://sdm-schemas.lsst.io/dp1.html",
        "diaObjectId,visit,expMidptMJD,band,psfFlux,psfFluxErr,psfDiffFlux,psfDiffFluxErr",
        "61,1{k},{mjd},{band},99999,10,{njy},{njye}",
        objects=("61",),
        opened="flags in the documentation of DP1 (psfDiffFlux_flag, invalidPsfFlag)",
    ),
    Entry(
        "Rubin alerts of Fink",
        "https://lsst.fink-portal.org",
        "r:diaObjectId,r:midpointMjdTai,r:band,r:psfFlux,r:psfFluxErr,r:scienceFlux,r:scienceFluxErr",
        "61,{mjd},{band},{njy},{njye},99999,10",
        objects=("61",),
    ),
    Entry(
        "ELAsTiCC",
        "https://portal.nersc.gov/cfs/lsst/DESC_TD_PUBLIC/ELASTICC/",
        "diaObjectId,midPointTai,filterName,psFlux,psFluxErr",
        "61,{mjd},{band},{njy},{njye}",
        objects=("61",),
    ),
    Entry(
        "Pan-STARRS1 Detection",
        "https://outerspace.stsci.edu/display/PANSTARRS/PS1+Detection+table+fields",
        "objID,detectID,filterID,obsTime,ra,dec,psfFlux,psfFluxErr,psfQfPerfect,infoFlag,zp",
        "11,{k},{band},{mjd},149.956,2.119,{jy:.9e},{jye:.9e},0.999,7,25.1",
        {"1": "g", "2": "r"},
        objects=("11",),
        opened="outerspace.stsci.edu, pages 10257275 and 298812397",
    ),
    Entry(
        "SDSS nanomaggies",
        "https://www.sdss4.org/dr17/algorithms/magnitudes/",
        "name,mjd,filter,psfFlux,psfFluxIvar",
        "a,{mjd},{band},{nmgy},{ivar}",
        objects=("a",),
    ),
    Entry(
        "maggies with inverse variances",
        "https://www.sdss4.org/dr17/algorithms/magnitudes/",
        "name,mjd,filter,maggies,maggies_ivar",
        "a,{mjd},{band},{mgy:.9e},{mgyivar:.9e}",
        objects=("a",),
    ),
    Entry(
        "Legacy Surveys nanomaggies",
        "https://www.legacysurvey.org/dr10/description/",
        "objid,mjd,band,flux [nanomaggies],flux_ivar",
        "5,{mjd},{band},{nmgy},{ivar}",
        objects=("5",),
    ),
    Entry(
        "OGLE",
        "https://ogle.astrouw.edu.pl",
        "",
        "{ogle} {mag} {err}",
        {"I": "I"},
        file="OGLE-LMC-CEP-1.dat",
        vega=True,
        objects=("OGLE-LMC-CEP-1",),
    ),
    Entry(
        "Catalina Surveys",
        "http://nunuku.caltech.edu/cgi-bin/getcssconedb_release_img.cgi",
        "MasterID,Mag,Magerr,RA,Decl,MJD,Blend",
        "1109,{mag},{err},67.1,9.2,{mjd},0",
        {"C": "C"},
        vega=True,
        objects=("1109",),
    ),
    Entry(
        "ASAS-3",
        "http://www.astrouw.edu.pl/asas/",
        "#     HJD      MAG_0  MAG_1 MER_0 MER_1 GRADE FRAME",
        "{ogle} {mag} 12.0 {err} 0.04 A {k}",
        {"V": "V"},
        file="lc.dat",
        vega=True,
        before="#ndata= 8",
        objects=("lc",),
    ),
    Entry(
        "Open Supernova Catalog (CSV)",
        "https://github.com/astrocatalogs/schema",
        "event,time,magnitude,e_magnitude,upperlimit,band,instrument,telescope,source,system",
        "SN2011fe,{mjd},{mag},{err},,{band},CCD,KAIT,1,AB",
        {"g'": "g", "r'": "r"},
        objects=("SN2011fe",),
    ),
    Entry(
        "TNS page",
        "https://www.wis-tns.org",
        '"ID","Obs-date","Flux","Mag. / Flux error","Limit","Flux unit","Filter","Tel / Inst"',
        '"{k}","{iso}","{mag}","{err}","","ABMag","{band}","ZTF"',
        {"g-ZTF": "g", "r-ZTF": "r"},
        file="AT2019abc.csv",
        objects=("AT2019abc",),
    ),
    Entry(
        "TNS API",
        "https://www.wis-tns.org/sites/default/files/api/TNS_APIs_manual.pdf",
        "objid,obsdate,jd,flux,fluxerr,limflux,flux_unit,filter_name,instrument",
        "77,{iso},{jd},{mag},{err},,ABMag,{band},ZTF-Cam",
        {"g-Sloan": "g", "r-Sloan": "r"},
        objects=("77",),
    ),
    Entry(
        "SkyPortal magnitudes",
        "https://skyportal.io/docs/api.html",
        "obj_id,mjd,filter,mag,magerr,limiting_mag,magsys,instrument_name,ra,dec",
        "ZTF21a,{mjd},{band},{mag},{err},20.5,ab,ZTF,1,2",
        {"ztfg": "g", "ztfr": "r"},
        objects=("ZTF21a",),
    ),
    Entry(
        "SkyPortal fluxes",
        "https://skyportal.io/docs/api.html",
        "obj_id,mjd,filter,flux,fluxerr,zp,zpsys",
        "ZTF21a,{mjd},{band},{ujy},{ujye},23.9,ab",
        {"ztfg": "g", "ztfr": "r"},
        objects=("ZTF21a",),
    ),
    Entry(
        "sncosmo, AB",
        "https://sncosmo.readthedocs.io/en/stable/photdata.html",
        "time band flux fluxerr zp zpsys",
        "{mjd} {band} {cal} {cale} 27.5 ab",
        {"sdssg": "g", "sdssr": "r"},
        file="lc.dat",
        objects=("lc",),
    ),
    Entry(
        "sncosmo, Vega",
        "https://sncosmo.readthedocs.io/en/stable/photdata.html",
        "time band flux fluxerr zp zpsys",
        "{mjd} {band} {cal} {cale} 27.5 vega",
        {"bessellb": "B", "bessellv": "V"},
        file="lc.dat",
        vega=True,
        objects=("lc",),
    ),
    Entry(
        "Swift SOUSA",
        "https://pbrown801.github.io/SOUSA/",
        "# Filter MJD[days] Mag MagErr 3SigMagLim 0.98SatLim[mag] Rate[c/s] RateErr[c/s]",
        "{band} {mjd} {mag} {err} 20.5 11.1 5.5 0.3",
        {"V": "V", "B": "B"},
        file="SN2011fe.dat",
        vega=True,
        objects=("SN2011fe",),
        opened="ultravioletsupernova.blogspot.com/2014/04",
    ),
    Entry(
        "Foundation supernovae",
        "https://github.com/djones1040/Foundation_DR1",
        "VARLIST: MJD FLT FLUXCAL FLUXCALERR MAG MAGERR",
        "OBS: {mjd} {band} {cal} {cale} {mag} {err}",
        file="f.txt",
        before="SURVEY: FOUNDATION\nSNID: 2016W",
        objects=("2016W",),
        extra="END:",
    ),
    Entry(
        "Kepler Input Catalogue numbers",
        "https://archive.stsci.edu/kepler/kic.html",
        "KIC,mjd,band,mag,magerr",
        "757076,{mjd},{band},{mag},{err}",
        objects=("757076",),
    ),
    Entry(
        "TESS Input Catalogue numbers",
        "https://tess.mit.edu/science/tess-input-catalogue/",
        "TIC,bjd,filter,mag,err",
        "123,{jd},{band},{mag},{err}",
        objects=("123",),
    ),
    Entry(
        "MACHO numbers",
        "http://macho.nci.org.au",
        "macho,mjd,band,mag,mag_err",
        "6.6091.12,{mjd},{band},{mag},{err}",
        {"V": "V", "R": "R"},
        vega=True,
        objects=("6.6091.12",),
    ),
    Entry(
        "value and error in one field",
        "https://journals.aas.org/",
        "SN,MJD,filter,mag",
        "SN1,{mjd},{band},{mag:.2f} ± {err:.2f}",
        objects=("SN1",),
    ),
    Entry(
        "errors of the last digits",
        "https://physics.nist.gov/cgi-bin/cuu/Info/Constants/definitions.html",
        "SN,MJD,filter,mag",
        "SN1,{mjd},{band},{mag:.3f}({mmag:.0f})",
        objects=("SN1",),
    ),
    Entry(
        "units in a second row",
        "https://docs.astropy.org/en/stable/io/ascii/",
        "MJD,Filter,Flux,Flux_err\n(days),,(uJy),(uJy)",
        "{mjd},{band},{ujy},{ujye}",
    ),
    Entry(
        "milliseconds since 1970",
        "https://developer.mozilla.org/docs/Web/JavaScript/Reference/Global_Objects/Date",
        "name,time,band,mag,err",
        "a,{ms},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "seconds since 1970",
        "https://pubs.opengroup.org/onlinepubs/9699919799/",
        "name,time,band,mag,err",
        "a,{unix},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "decimal years",
        "https://docs.astropy.org/en/stable/time/",
        "name,year,band,mag,err",
        "a,{year:.9f},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "MJD from a constant",
        "https://www.aanda.org",
        "name,MJD-50000,band,mag,err",
        "a,{m50:.6f},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "magnitudes in AB columns by filter",
        "https://www.astro.princeton.edu/~rhl",
        "name,mjd,g_mag,g_mag_err",
        "a,{mjd},{mag},{err}",
        G,
        objects=("a",),
    ),
    Entry(
        "e_X columns by filter",
        "https://vizier.cds.unistra.fr",
        "name,MJD,rmag,e_rmag",
        "a,{mjd},{mag},{err}",
        R,
        objects=("a",),
    ),
    Entry(
        "error in millimagnitudes",
        "https://www.aavso.org",
        "name,mjd,band,mag,err_mmag",
        "a,{mjd},{band},{mag},{mmag}",
        objects=("a",),
    ),
    Entry(
        "signal-to-noise ratio",
        "https://lasair.lsst.ac.uk",
        "name,mjd,band,mag,snr",
        "a,{mjd},{band},{mag},{snr}",
        objects=("a",),
    ),
    Entry(
        "zero point in a column",
        "https://lco.global/documentation/archive-documentation/",
        "name,mjd,band,flux,flux_err,zeropoint",
        "a,{mjd},{band},{dn},{dne},{zp}",
        objects=("a",),
    ),
    Entry(
        "magnitude system in a column",
        "https://sne.space",
        "name,mjd,band,mag,mag_err,magsys",
        "a,{mjd},{band},{mag},{err},Vega",
        {"V": "V", "B": "B"},
        vega=True,
        objects=("a",),
    ),
    Entry(
        "good and bad in words",
        "https://www.legacysurvey.org",
        "name,mjd,band,mag,mag_err,quality",
        "a,{mjd},{band},{mag},{err},good",
        objects=("a",),
        extra="a,58800.0,g,12.0,0.01,bad",
        left_out=1,
    ),
    Entry(
        "decimal commas",
        "https://www.aavso.org",
        "name;jd;filter;mag;err",
        "a;{jd};{band};{mag};{err}",
        objects=("a",),
        file="de.csv",
    ),
    Entry(
        "instrument beside the magnitude",
        "https://www.wis-tns.org",
        "mjd,filter,mag,mag_err,source,telescope",
        "{mjd},{band},{mag},{err},ZTF,P48",
    ),
    Entry(
        "Lasair, fainter than the reference",
        "https://lasair-ztf.lsst.ac.uk/api",
        "MJD,filter,unforced mag,unforced mag error,unforced mag status,limiting mag",
        "{mjd},{band},{mag},{err},negative,20.1",
        extra="58800.0,g,20.1,,limit,20.1",
        left_out=1,
        negative=True,
        opened="public readers of Lasair's tables (unforced mag status)",
    ),
    Entry(
        "Rubin forced photometry with flags",
        "https://dp1.lsst.io",
        "diaObjectId,visit,band,expMidptMJD,psfDiffFlux,psfDiffFluxErr,psfFlux_flag,psfDiffFlux_flag,pixelFlags_bad,invalidPsfFlag",
        "61,1{k},{band},{mjd},{njy},{njye},True,False,False,False",
        objects=("61",),
        extra="61,19,g,58800.0,9e9,10,False,True,False,False\n61,20,g,58801.0,9e9,10,False,False,False,True",
        left_out=2,
        opened="flags in the documentation of DP1 and DP2 (psfDiffFlux_flag, invalidPsfFlag)",
    ),
    Entry(
        "AAVSO with discrepant and visual rows",
        "https://www.aavso.org/data-download",
        "JD,Magnitude,Uncertainty,HQuncertainty,Band,Observer Code,Validation Flag,Star Name",
        "{jd},{mag},{err},,{band},XYZ,Z,SS CYG",
        {"V": "V", "B": "B"},
        file="aavsodata_1.txt",
        vega=True,
        objects=("SS CYG",),
        extra="2458900.5,<15.0,,,Vis.,XYZ,V,SS CYG\n2458902.5,10.0,0.01,,V,XYZ,T,SS CYG",
        left_out=2,
        opened="mintaka.aavso.org/index.php/format-data-file",
    ),
    Entry(
        "ATLAS with rows that were not fitted",
        "https://fallingstar-data.com/forcedphot/resultdesc/",
        "###MJD m dm uJy duJy F err chi/N RA Dec x y maj min phi apfit mag5sig Sky Obs",
        "{mjd} {mag} {err} {ujy} {ujye} {band} 0 1.1 110.1 -20.2 1 2 2 2 -40 -0.4 19.5 20 01a{k}",
        {"c": "c", "o": "o"},
        file="job.txt",
        objects=("job",),
        extra="58901.1 14.0 0.01 900000 50 o 1 1.1 110.1 -20.2 1 2 2 2 -40 -0.4 19.5 20 01a9",
        left_out=1,
        opened="fallingstar-data.com/forcedphot/resultdesc",
    ),
    Entry(
        "PTF at IRSA",
        "https://irsa.ipac.caltech.edu/data/PTF/gator_docs/ptf_lightcurves_colDescriptions.html",
        "obsmjd,mag_autocorr,magerr_auto,oid,fid,goodflag,ra,dec",
        "{mjd},{mag},{err},226831,{band},1,1.1,2.2",
        {"1": "g", "2": "r"},
        objects=("226831",),
        extra="58800.1,15.0,0.01,226831,2,0,1.1,2.2",
        left_out=1,
        opened="public readers of IRSA's table (obsmjd, mag_autocorr, magerr_auto, fid 1 g, 2 R)",
    ),
    Entry(
        "DES difference imaging",
        "https://zenodo.org/records/12720778",
        "CID,MJD,BAND,FIELD,PHOTFLAG,PHOTPROB,ZPFLUX,PSF,EXPNUM,CCDNUM,OBJID,FLUXCAL,FLUXCALERR",
        "125,{mjd},{band},X3,4096,0.9,31.1,2,1{k},3,{k},{cal},{cale}",
        objects=("125",),
    ),
    Entry(
        "CSP, filters in columns and 99.9 for none",
        "https://csp.obs.carnegiescience.edu/data",
        "MJD,u,u_err,g,g_err",
        "{mjd},99.900,99.900,{mag},{err}",
        G,
        left_out=8,
    ),
    Entry(
        "AAS machine-readable table, date of zero in the explanation",
        "https://journals.aas.org/mrt-standards/",
        "",
        "{m50:9.3f} {band}   {mag:6.3f} {err:5.3f}",
        file="tab.txt",
        objects=("tab",),
        before='Title: SN 2019a\nTable: Photometry\n================================================================================\nByte-by-byte Description of file: datafile3.txt\n--------------------------------------------------------------------------------\n   Bytes Format Units  Label   Explanations\n--------------------------------------------------------------------------------\n   1-  9 F9.3   d      JD      Julian Date; JD-2450000.5 (1)\n  11     A1     ---    Filt    Filter\n  13     A1     ---    l_mag   Limit flag on mag\n  15- 20 F6.3   mag    mag     ?="" AB magnitude\n  22- 26 F5.3   mag    e_mag   ? Uncertainty in mag\n--------------------------------------------------------------------------------\nNote (1): In the observer\'s frame.\n--------------------------------------------------------------------------------',
        extra=" 8730.250 g > 20.500      ",
        left_out=1,
    ),
    Entry(
        "VizieR TSV, filters in columns with limits",
        "https://vizier.cds.unistra.fr/doc/asu-summary.htx",
        "_RAJ2000\t_DEJ2000\tSN\tMJD\tl_Vmag\tVmag\te_Vmag\ndeg\tdeg\t \td\t \tmag\tmag\n--------\t--------\t------\t---------\t-\t------\t-----",
        "010.1000\t+20.2000\t2019a\t{mjd}\t \t{mag}\t{err}",
        {"V": "V"},
        before="#\n#   VizieR Astronomical Server vizier.cds.unistra.fr\n#RESOURCE=yCat_123\n#Name: J/ApJ/1/1",
        file="asu.tsv",
        vega=True,
        objects=("2019a",),
        extra="010.1000\t+20.2000\t2019a\t58800.1\t>\t20.1\t ",
        left_out=1,
    ),
    Entry(
        "ZTF forced photometry service, all columns",
        "https://irsa.ipac.caltech.edu/data/ZTF/docs/ztf_zfps_userguide.pdf",
        "sindex field ccdid qid filter pid infobitssci sciinpseeing zpmaginpsci zpmaginpsciunc diffmaglim zpdiff programid jd rfid forcediffimflux forcediffimfluxunc forcediffimsnr forcediffimfluxap forcediffimfluxuncap nearestrefmag refjdstart procstatus",
        "{k} 600 1 1 {band} 9{k} 0 2 26.0 0.001 20.5 {zp} 1 {jd} 12 {dn} {dne} 10 5 5 18 1 0",
        {"ZTF_g": "g", "ZTF_r": "r"},
        before="# Requested input R.A. = 1.0 degrees\n# ",
        file="forcedphotometry_req1_lc.txt",
        objects=("forcedphotometry_req1_lc",),
        seconds=ZTF_SECONDS,
        extra="9 600 1 1 ZTF_g 99 0 2 26.0 0.001 20.5 26.3 1 2458900.5 12 null null null 5 5 18 1 56",
        left_out=1,
    ),
    Entry(
        "names of Ampel's filters",
        "https://github.com/AmpelProject",
        "name,mjd,filter,mag,err",
        "a,{mjd},{band},{mag},{err}",
        {"ztf::g": "g", "ps1::i": "i", "sdss::u": "u"},
        objects=("a",),
    ),
    Entry(
        "KAIT, filters in columns",
        "https://w.astro.berkeley.edu/bait/public_html/kait.html",
        "MJD,B,B_err",
        "{mjd},{mag},{err}",
        {"B": "B"},
        vega=True,
    ),
    Entry(
        "true for rows to use",
        "https://pandas.pydata.org",
        "name,mjd,band,mag,mag_err,is_valid",
        "a,{mjd},{band},{mag},{err},True",
        objects=("a",),
        extra="a,58800.1,g,15.0,0.01,False",
        left_out=1,
    ),
    Entry(
        "Julian dates in a column of MJD",
        "https://www.iausofa.org",
        "name,MJD,band,mag,err",
        "a,{jd},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "JD without 2400000",
        "https://www.iausofa.org",
        "name,HJD,band,mag,err",
        "a,{rjd},{band},{mag},{err}",
        objects=("a",),
    ),
    Entry(
        "dates with a fraction of a day",
        "https://www.iausofa.org",
        "name,date,band,mag,err",
        "a,{date},{band},{mag},{err}",
        objects=("a",),
    ),
]
