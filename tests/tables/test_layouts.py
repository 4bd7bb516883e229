"""Small tables with the columns of surveys, brokers and archives, read without an option."""

# ruff: noqa: E501  # lines of names are those of the surveys

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from nightjar_alerts.tables import TableOptions, TableQuestion, read_table

MJD = np.array([58_700.25 + 3.0 * step for step in range(8)])
MAG = np.array([19.5, 19.1, 18.7, 18.4, 18.5, 18.8, 19.2, 19.6])
ERR = np.array([0.09, 0.07, 0.05, 0.04, 0.04, 0.05, 0.07, 0.1])
NJY = 10 ** (-0.4 * (MAG - 31.4))
NJY_ERR = NJY * ERR / 1.0857362
JD = MJD + 2_400_000.5


def iso(mjd: float) -> str:
    return str(np.datetime64("1858-11-17T00:00:00", "ms") + np.timedelta64(round(mjd * 86_400_000), "ms"))


def table(header: str, row: str, separator: str = ",", **columns: Any) -> str:
    """Return a text table with one row for each of the eight points; ``row`` is a format of their values."""
    rows = [
        row.format(
            mjd=MJD[k], jd=JD[k], mag=MAG[k], err=ERR[k], njy=NJY[k], njy_err=NJY_ERR[k], ujy=NJY[k] / 1e3,
            ujy_err=NJY_ERR[k] / 1e3, mjy=NJY[k] / 1e6, mjy_err=NJY_ERR[k] / 1e6, cal=NJY[k] / 36.3078,
            cal_err=NJY_ERR[k] / 36.3078, iso=iso(MJD[k]), k=k, **{name: values[k % len(values)] for name, values in columns.items()}
        )
        for k in range(8)
    ]  # fmt: skip
    return "\n".join([header, *rows]) + "\n"


@dataclass
class Case:
    name: str
    file: str
    text: str
    bands: dict[str, int] = field(default_factory=lambda: {"g": 4, "r": 4})
    points: int = 8
    flux: float = NJY[0]
    flux_err: float = NJY_ERR[0]
    kind: str = "difference"
    survey: str = ""
    object_id: str | None = None
    limits: int = 0
    mjd: float = MJD[0]


GR = ("g", "r")
CASES = [
    Case(
        "TNS",
        "AT2019abc.csv",
        table(
            '"ID","Obs-date","Flux","Mag. / Flux error","Limit","Flux unit","Filter","Tel / Inst","Exp-time"',
            '"{k}","{iso}","{mag}","{err}","","ABMag","{band}","ZTF","30"',
            band=("g-ZTF", "r-ZTF"),
        ),
        object_id="AT2019abc",
    ),
    Case(
        "TNS API columns",
        "sn.csv",
        table(
            "objid,obsdate,jd,flux,fluxerr,limflux,flux_unit,filter_name,instrument",
            "77,{iso},{jd},{mag},{err},,ABMag,{band},ZTF-Cam",
            band=("g-Sloan", "r-Sloan"),
        ),
        object_id="77",
    ),
    Case(
        "ZTF forced photometry",
        "batchfp_req0001_lightcurve.txt",
        "# Requested input R.A. = 10.0 degrees\n# Requested input Dec. = 20.0 degrees\n#\n#\n"
        + table(
            "index, field, ccdid, qid, filter, pid, infobitssci, zpmaginpsci, programid, jd, forcediffimflux, "
            "forcediffimfluxunc, forcediffimsnr, zpdiff, nearestrefmag, procstatus",
            "{k} 600 10 2 {band} 99{k} 0 26.3 1 {jd} {dn} {dn_err} 20.0 26.25 null 0",
            band=("ZTF_g", "ZTF_r"),
            dn=tuple(NJY * 10 ** (-0.4 * (31.4 - 26.25))),
            dn_err=tuple(NJY_ERR * 10 ** (-0.4 * (31.4 - 26.25))),
        ),
        survey="ztf",
    ),
    Case(
        "ATLAS forced photometry",
        "AT2021xyz.txt",
        table(
            "###MJD          m      dm   uJy   duJy F err chi/N   RA       Dec        x        y     maj  min   phi  apfit "
            "mag5sig Sky   Obs",
            "{mjd}  {mag}  {err}  {ujy} {ujy_err} {band} 0 1.10 110.1 -20.2 100.1 200.2 2.2 2.1 -40.1 -0.4 19.5 20.5 01a{k}",
            band=("c", "o"),
        ),
        bands={"c": 4, "o": 4},
        survey="atlas",
        object_id="AT2021xyz",
    ),
    Case(
        "ATLAS forced photometry, as CSV",
        "atlas.csv",
        table(
            "MJD,m,dm,uJy,duJy,F,err,chi/N,RA,Dec,x,y,maj,min,phi,apfit,mag5sig,Sky,Obs",
            "{mjd},-{mag},{err},{ujy},{ujy_err},{band},0,1.1,110,-20,1,2,3,4,5,6,19.5,20,01a",
            band=("c", "o"),
        ),
        bands={"c": 4, "o": 4},
        survey="atlas",
    ),
    Case(
        "ALeRCE detections",
        "detections.csv",
        table(
            "oid,candid,mjd,fid,pid,diffmaglim,isdiffpos,distnr,magpsf,magpsf_corr,magpsf_corr_ext,sigmapsf,sigmapsf_corr,ra,dec",
            "ZTF20aaa,1000{k},{mjd},{fid},1,20.5,1,0.3,{mag},17.0,17.0,{err},0.02,10.1,20.2",
            fid=(1, 2),
        ),
        object_id="ZTF20aaa",
        survey="ztf",
    ),
    Case(
        "ALeRCE, prediction service",
        "alerce.csv",
        table(
            "candid,oid,mjd,fid,pid,ra,dec,mag,e_mag,mag_corr,e_mag_corr,isdiffpos,corrected,dubious",
            "9{k},ZTF20aaa,{mjd},{band},1,10,20,{mag},{err},17.1,0.01,1,True,False",
            band=GR,
        ),
        object_id="ZTF20aaa",
        survey="ztf",
    ),
    Case(
        "Fink",
        "fink.csv",
        table(
            "i:objectId,i:jd,i:fid,i:magpsf,i:sigmapsf,i:isdiffpos,d:cdsxmatch",
            "ZTF20aab,{jd},{fid},{mag},{err},t,Unknown",
            fid=(1, 2),
        ),
        object_id="ZTF20aab",
        survey="ztf",
    ),
    Case(
        "Lasair",
        "lasair.csv",
        table(
            "MJD,filter,unforced mag,unforced mag error,unforced mag status,forced uJy,forced uJy error,limiting mag",
            "{mjd},{band},{mag},{err},positive,,,20.1",
            band=GR,
        ),
    ),
    Case(
        "ASAS-SN Sky Patrol 1",
        "light_curve_1.csv",
        table(
            "HJD,UT Date,Camera,FWHM,Limit,mag,mag_err,flux(mJy),flux_err,Filter",
            "{jd},2019-08-{k}.1,bA,1.5,17.5,{mag},{err},{mjy},{mjy_err},{band}",
            band=("V", "g"),
        ),
        bands={"V": 4, "g": 4},
        kind="total",
        survey="asas-sn",
    ),
    Case(
        "ASAS-SN Sky Patrol 2",
        "asassn2.csv",
        table(
            "JD,Flux,Flux Error,Mag,Mag Error,Limit,FWHM,Filter,Quality,Camera,Image ID",
            "{jd},{mjy},{mjy_err},{mag},{err},17.5,1.5,{band},G,bi,coadd_{k}",
            band=("V", "g"),
        ),
        bands={"V": 4, "g": 4},
        kind="total",
        survey="asas-sn",
    ),
    Case(
        "AAVSO",
        "aavsodata.txt",
        table(
            "JD,Magnitude,Uncertainty,HQuncertainty,Band,Observer Code,Comment Code(s),Star Name,Validation Flag,Digitizer",
            "{jd},{mag},{err},,{band},XYZ,,SS CYG,V,",
            band=("V", "B"),
        ),
        bands={"V": 4, "B": 4},
        kind="total",
        flux=NJY[0] * 10 ** (-0.4 * 0.02),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.02),
        object_id="SS CYG",
    ),
    Case(
        "Gaia alerts",
        "Gaia19abc.csv",
        "#Gaia19abc\n"
        + table("#Date,JD(TCB),averagemag.", "{iso},{jd},{mag}").replace(f"{MAG[3]}\n", "untrusted\n"),
        bands={"G": 8},
        points=0,
        kind="total",
        survey="gaia",
    ),
    Case(
        "Gaia epoch photometry",
        "gaia_epoch.csv",
        table(
            "source_id,transit_id,band,time,mag,flux,flux_error,flux_over_error,rejected_by_photometry",
            "4057091150787104896,1{k},{band},{gaia},{mag},{counts},{counts_err},100.0,False",
            band=("G", "BP"),
            gaia=tuple(MJD - 55_197.0),
            counts=tuple(10 ** (-0.4 * (MAG - 25.6874))),
            counts_err=tuple(10 ** (-0.4 * (MAG - 25.6874)) * ERR / 1.0857362),
        ),
        bands={"G": 4, "BP": 4},
        kind="total",
        flux=NJY[0] * 10 ** (-0.4 * 0.114),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.114),
        object_id="4057091150787104896",
        survey="gaia",
    ),
    Case(
        "SNANA text",
        "DES_real_01.dat",
        "SURVEY: DES\nSNID:  1248677\nIAUC: 2013xx\nFILTERS: griz\nREDSHIFT_HELIO: 0.35 +- 0.001\n\nNOBS: 8\nNVAR: 7\n"
        + table(
            "VARLIST: MJD BAND FIELD FLUXCAL FLUXCALERR ZPFLUX PHOTFLAG",
            "OBS: {mjd} {band} C1 {cal} {cal_err} 31.2 4096",
            band=GR,
        )
        + "END:\n",
        object_id="1248677",
    ),
    Case(
        "Open Supernova Catalog",
        "SN2011fe.csv",
        table(
            "event,time,magnitude,e_magnitude,upperlimit,band,instrument,telescope,source,system",
            "SN2011fe,{mjd},{mag},{err},,{band},CCD,KAIT,1,AB",
            band=("g'", "r'"),
        ),
        object_id="SN2011fe",
    ),
    Case(
        "Swift SOUSA",
        "SN2011fe_uvotB15.1.dat",
        "# Reference: Brown et al. 2014\n"
        + table(
            "# Filter MJD[days] Mag MagErr 3SigMagLim 0.98SatLim[mag] Rate[c/s] RateErr[c/s] Ap[arcsec] Frametime[s]",
            "{band}  {mjd}  {mag}  {err}  20.5  11.1  5.5  0.3  3.0  0.011",
            band=("V", "UVW1"),
        ),
        bands={"V": 4},
        points=4,
        flux=NJY[0] * 10 ** (-0.4 * 0.02),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.02),
        survey="swift",
    ),
    Case(
        "DES and Pantheon+ columns",
        "des.csv",
        table("CID,MJD,FLT,FLUXCAL,FLUXCALERR,PHOTFLAG", "125,{mjd},{band},{cal},{cal_err},0", band=GR),
        object_id="125",
    ),
    Case(
        "PLAsTiCC",
        "training_set.csv",
        table("object_id,mjd,passband,flux,flux_err,detected", "615,{mjd},{band},{cal},{cal_err},1", band=(1, 2)),
        object_id="615",
    ),
    Case(
        "ELAsTiCC",
        "elasticc.csv",
        table(
            "diaObjectId,midPointTai,filterName,psFlux,psFluxErr,ccdVisitId",
            "123456789,{mjd},{band},{cal},{cal_err},1",
            band=GR,
        ),
        object_id="123456789",
        flux=NJY[0] / 36.3078,
        flux_err=NJY_ERR[0] / 36.3078,
        survey="lsst",
    ),
    Case(
        "Rubin DP1 sources",
        "diasource.csv",
        table(
            "diaSourceId,diaObjectId,midpointMjdTai,band,psfFlux,psfFluxErr,scienceFlux,scienceFluxErr,reliability",
            "{k},611254385447108736,{mjd},{band},{njy},{njy_err},99999,10,0.9",
            band=GR,
        ),
        object_id="611254385447108736",
        survey="lsst",
    ),
    Case(
        "Rubin DP1 forced sources",
        "forced.csv",
        table(
            "diaObjectId,visit,expMidptMJD,band,psfFlux,psfFluxErr,psfDiffFlux,psfDiffFluxErr",
            "611254385447108736,1{k},{mjd},{band},99999,10,{njy},{njy_err}",
            band=GR,
        ),
        object_id="611254385447108736",
        survey="lsst",
    ),
    Case(
        "OGLE",
        "OGLE-LMC-CEP-0001.dat",
        table("", "{ogle}  {mag}  {err}", ogle=tuple(JD - 2_450_000)).lstrip(),
        bands={"I": 8},
        kind="total",
        flux=NJY[0] * 10 ** (-0.4 * 0.45),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.45),
        object_id="OGLE-LMC-CEP-0001",
        survey="ogle",
    ),
    Case(
        "ASAS-3",
        "065640+0011.4",
        "#ndata= 8\n#cra= 6.944\n"
        + table(
            "#     HJD      MAG_3  MAG_0 MAG_1 MAG_2 MAG_4   MER_3 MER_0 MER_1 MER_2 MER_4 GRADE FRAME",
            "{asas} {mag} 12.0 12.0 12.0 12.0 {err} 0.04 0.04 0.04 0.04 A {k}",
            asas=tuple(JD - 2_450_000),
        ),
        bands={"V": 8},
        kind="total",
        flux=NJY[0] * 10 ** (-0.4 * 0.02),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.02),
    ),
    Case(
        "Catalina",
        "css.csv",
        table("MasterID,Mag,Magerr,RA,Decl,MJD,Blend", "1109051013455,{mag},{err},67.1,9.2,{mjd},0"),
        bands={"C": 8},
        kind="total",
        flux=NJY[0] * 10 ** (-0.4 * 0.02),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.02),
        object_id="1109051013455",
    ),
    Case(
        "ZTF data release at IRSA",
        "irsa.csv",
        table(
            "oid,expid,hjd,mjd,mag,magerr,catflags,filtercode,ra,dec,chi,sharp",
            "686103400034440,1{k},{jd},{mjd},{mag},{err},0,{band},10,20,1.0,0.1",
            band=("zg", "zr"),
        ),
        kind="total",
        object_id="686103400034440",
        survey="ztf",
    ),
    Case(
        "IPAC table",
        "lc.tbl",
        "\\SQL = 'select'\n|        mjd |    mag | magerr | filtercode |\n|     double | double | double |       char |\n"
        "|       days |    mag |    mag |            |\n"
        + table("", " {mjd:>11.5f}  {mag:>6}  {err:>6}  {band:>10} ", band=("zg", "zr")).lstrip("\n"),
    ),
    Case(
        "SkyPortal",
        "skyportal.csv",
        table(
            "obj_id,mjd,filter,mag,magerr,limiting_mag,magsys,instrument_name,ra,dec",
            "ZTF21abc,{mjd},{band},{mag},{err},20.5,ab,ZTF,1,2",
            band=("ztfg", "ztfr"),
        ),
        object_id="ZTF21abc",
    ),
    Case(
        "SkyPortal, flux",
        "skyportal_flux.csv",
        table(
            "obj_id,mjd,filter,flux,fluxerr,zp,zpsys,instrument_name",
            "ZTF21abc,{mjd},{band},{ujy},{ujy_err},23.9,ab,ZTF",
            band=("ztfg", "ztfr"),
        ),
        object_id="ZTF21abc",
    ),
    Case(
        "sncosmo",
        "sncosmo.dat",
        table("time band flux fluxerr zp zpsys", "{mjd} {band} {cal} {cal_err} 27.5 ab", band=("sdssg", "sdssr")),
    ),
    Case(
        "MALLORN",
        "lightcurves.csv",
        table("object_id,Time (MJD),Flux,Flux_err,Filter", "Dorn_a,{mjd},{ujy},{ujy_err},{band}", band=GR),
        object_id="Dorn_a",
    ),
    Case(
        "wide, one column a filter",
        "wide.csv",
        table("star,HJD,V,e_V,B,e_B", "X1,{jd},{mag},{err},{mag},{err}"),
        bands={"V": 8, "B": 8},
        points=16,
        flux=NJY[0] * 10 ** (-0.4 * 0.02),
        flux_err=NJY_ERR[0] * 10 ** (-0.4 * 0.02),
        object_id="X1",
    ),
    Case(
        "wide, names with the filter behind",
        "wide2.csv",
        table("name,mjd,mag_g,mag_err_g,mag_r,mag_err_r", "X1,{mjd},{mag},{err},,"),
        bands={"g": 8},
        object_id="X1",
    ),
    Case(
        "wide, flux with the filter in front",
        "wide3.tsv",
        table("objid\tmjd\tg_flux_ujy\tg_flux_err_ujy\tr_flux_ujy\tr_flux_err_ujy", "X1\t{mjd}\t{ujy}\t{ujy_err}\tnan\tnan"),
        bands={"g": 8},
        object_id="X1",
    ),
    Case(
        "semicolons and dates",
        "notes.csv",
        table("Target;Date (UT);Band;Magnitude;Error", "SN 2020x;{iso};{band};{mag};{err}", band=("SDSS g", "SDSS r")),
        object_id="SN 2020x",
    ),
    Case(
        "names of one's own",
        "mine.csv",
        table("transient,epoch_mjd,passband_name,brightness_ab,brightness_unc", "T1,{mjd},{band},{mag},{err}", band=GR),
        object_id="T1",
    ),
    Case(
        "flux with unit in the name",
        "units.csv",
        table("source_name,t_mjd,filter,f_nu [uJy],f_nu_err [uJy]", "T1,{mjd},{band},{ujy},{ujy_err}", band=GR),
        object_id="T1",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_read_table_with_public_columns_needs_no_option(case: Case) -> None:
    options = TableOptions(mag_err=0.05) if case.name == "Gaia alerts" else TableOptions()
    read = read_table(case.text.encode(), options, name=case.file)
    objects = list(read)
    assert len(objects) == 1
    item = objects[0]
    if case.object_id is not None:
        assert item.object_id == case.object_id
    keep = item.usable()
    counts = {name: int((item.band[keep] == name).sum()) for name in set(item.band[keep])}
    if case.points:
        assert counts == case.bands
        assert keep.sum() == case.points
        first = np.flatnonzero(keep)[0]
        np.testing.assert_allclose(item.flux[first], case.flux, rtol=2e-3)
        np.testing.assert_allclose(item.flux_err[first], case.flux_err, rtol=2e-3)
    np.testing.assert_allclose(item.mjd.min(), case.mjd, atol=2e-5)
    assert item.survey == case.survey
    assert (item.flux_kind or "difference") == (case.kind or "difference")
    assert len(item.light_curve()) == keep.sum()
    assert all(str(guess) for guess in read.guesses)


OTHER_NAMES = [
    ("SN,obs_time_mjd,flt,m_AB,dm_AB", "a,{mjd},{band},{mag},{err}"),
    ("Name,JulianDate,Filter_Name,Apparent_Magnitude,Magnitude_Uncertainty", "a,{jd},SDSS-{band},{mag},{err}"),
    ("transient_name,MJD_obs,band_name,flux_density_uJy,flux_density_err_uJy", "a,{mjd},{band},{ujy},{ujy_err}"),
    ("source,t,f,y,yerr", "a,{mjd},{band},{mag},{err}"),
    ("oid,epoch,lambda,brightness,error", "a,{mjd},{band},{mag},{err}"),
    ("ID;Date;Filtre;Mag;Erreur", "a;{iso};{band};{mag};{err}"),
    ("star_id,bjd_tdb,instrument_filter,calibrated_mag,calibrated_mag_err", "a,{jd},{band},{mag},{err}"),
    ("name,phot_mjd,phot_filter,phot_flux,phot_flux_err,phot_zp", "a,{mjd},{band},{ujy},{ujy_err},23.9"),
    ("id,mjd,band,f_njy,ferr_njy", "a,{mjd},{band},{njy},{njy_err}"),
    ("Object ID,Time [MJD],Band,Flux [mJy],Flux Error [mJy]", "a,{mjd},{band},{mjy},{mjy_err}"),
    ("ZTF_id,MJD,ZTF_filter,ZTF_mag,ZTF_magerr", "a,{mjd},ZTF_{band},{mag},{err}"),
    ("object_id,time,band,value,value_err,value_unit", "a,{mjd},{band},{mag},{err},ABmag"),
    ("object_id,time,band,value,value_err,value_unit", "a,{mjd},{band},{ujy},{ujy_err},uJy"),
    ("sourceid,obsTime,bandpass,calFlux_Jy,calFluxErr_Jy", "7,{mjd},{band},{ujy}e-6,{ujy_err}e-6"),
    ("col1,col2,col3,col4,col5", "a,{mjd},{band},{mag},{err}"),
    ("obs_id,name,mjd,filter,mag,magerr", "{k},a,{mjd},{band},{mag},{err}"),
    ("time (BJD),Source AMag,mag err,filter", "{jd},{mag},{err},{band}"),
    ("Observation Time (UTC),Filter,AB Mag,AB Mag Error,Target Name", "{iso},{band},{mag},{err},a"),
    ("jd,filt,flux,eflux,units,name", "{jd},{band},{ujy},{ujy_err},microJy,a"),
]


@pytest.mark.parametrize(("names", "row"), OTHER_NAMES, ids=[names for names, _ in OTHER_NAMES])
def test_read_table_with_names_of_ones_own_needs_no_option(names: str, row: str) -> None:
    (item,) = read_table(table(names, row, ";" if ";" in names else ",", band=GR).encode(), name="x.csv")
    assert sorted(item.band) == ["g"] * 4 + ["r"] * 4
    np.testing.assert_allclose(item.mjd, MJD, atol=2e-5)
    np.testing.assert_allclose(item.flux, NJY, rtol=1e-3)
    np.testing.assert_allclose(item.flux_err, NJY_ERR, rtol=2e-3)


def test_signal_to_noise_ratio_stands_for_the_error() -> None:
    text = table("object,JD,filter,mag,snr", "a,{jd},{band},{mag},{snr}", band=GR, snr=tuple(1.0857362 / ERR))
    (item,) = read_table(text.encode(), name="x.csv")
    np.testing.assert_allclose(item.flux_err, NJY_ERR, rtol=1e-3)


def test_column_that_may_name_objects_is_a_question() -> None:
    rows = [f"{'AB'[k % 2]},{MJD[k]},g,{MAG[k]},{ERR[k]}" for k in range(8)]
    text = "\n".join(["cluster,mjd,band,mag,mag_err", *rows]).encode()
    with pytest.raises(TableQuestion, match="cluster") as caught:
        read_table(text, name="x.csv")
    assert caught.value.option == "columns.object_id"
    assert len(list(read_table(text, TableOptions(columns={"object_id": "cluster"}), name="x.csv"))) == 2
    assert len(list(read_table(text, TableOptions(columns={"object_id": ""}), name="x.csv"))) == 1


def test_table_of_variable_stars_is_of_total_flux_and_one_of_transients_is_not() -> None:
    days = 58_000.0 + 5.0 * np.arange(50)
    rows = {
        "star": [f"{name},{day},g,{16 + 0.3 * np.sin(day + ord(name))},0.02" for name in "abc" for day in days],
        "transient": [f"{name},{58_000 + k},g,{20 - 0.3 * k},0.05" for name in "abcdefg" for k in range(10)],
    }
    names = "object_id,mjd,band,mag,mag_err"
    stars = read_table("\n".join([names, *rows["star"]]).encode(), name="x.csv")
    assert [item.flux_kind for item in stars] == ["total"] * 3
    assert any(guess.option == "flux_kind" for guess in stars.guesses)
    mixed = "\n".join([names, *rows["star"], *(f"t{row}" for row in rows["transient"])]).encode()
    with pytest.raises(TableQuestion, match=r"3 of 10 objects look like whole sources, .* and 7 of 10") as caught:
        read_table(mixed, name="x.csv")
    assert caught.value.option == "flux_kind"
    transients = list(read_table("\n".join([names, *rows["transient"]]).encode(), name="x.csv"))
    assert {item.flux_kind for item in transients} == {""}
    stated = read_table("\n".join([names, *rows["star"]]).encode(), TableOptions(flux_kind="difference"), name="x.csv")
    assert {item.flux_kind for item in stated} == {"difference"}
    assert [len(item.light_curve().warnings) for item in stated] == [0, 0, 0]
