// Light curves as points for plots and tables: fluxes in nJy, AB magnitudes, signal-to-noise ratios.

import { stylesOf } from "./bands.js";

const ZERO_POINT = 31.4; // AB magnitude of 1 nJy
const NJY = { nJy: 1, uJy: 1e3, FLUXCAL: 10 ** ((ZERO_POINT - 27.5) / 2.5) };
const DETECTION_SIGMA = 5;
export const LIMIT_SIGMA = 3; // below this signal-to-noise ratio a magnitude is shown as an upper limit

export const magnitude = (flux) => ZERO_POINT - 2.5 * Math.log10(flux);
export const magnitudeError = (point) => (2.5 / Math.LN10) * (point.error / point.flux);
export const upperLimit = (point) => magnitude(DETECTION_SIGMA * point.error);

/** AB magnitude of Vega by filter, as in models/photometry.py. */
const VEGA = {
  u: 0.91,
  g: -0.08,
  r: 0.16,
  i: 0.37,
  z: 0.54,
  Y: 0.634,
  y: 0.634,
  G: 0.114,
  BP: 0.016,
  RP: 0.356,
  U: 0.79,
  B: -0.09,
  V: 0.02,
  R: 0.21,
  I: 0.45,
  C: 0.02,
};

/** What is added to the magnitudes of a band to get AB. */
function toAb(curve, band) {
  if (curve.mag_system !== "Vega") return 0;
  const zeroPoint = curve.filters?.[band]?.vega_zero_point_jy;
  return zeroPoint ? -2.5 * Math.log10(zeroPoint / 3631) : VEGA[band] || 0;
}

/**
 * Points of a light curve in the form of /v1/classify, in order of time.
 * Returns [{mjd, flux, error, band, detected, limit}], flux and error in nJy; of an upper limit (`limit`) flux is the limit.
 */
export function pointsOf(curve) {
  const factor = NJY[curve.flux_unit || "nJy"] || 1;
  const points = curve.mjd.map((mjd, i) => {
    const band = String(curve.band[i]);
    const limit = Boolean(curve.upper_limit?.[i]);
    let flux = (curve.flux?.[i] ?? NaN) * factor;
    let error = (curve.flux_err?.[i] ?? NaN) * factor;
    if (Number.isNaN(flux)) {
      flux = 10 ** ((ZERO_POINT - (curve.mag[i] + toAb(curve, band))) / 2.5);
      error = ((curve.mag_err?.[i] ?? NaN) * flux * Math.LN10) / 2.5;
    }
    const detected = limit ? false : curve.detected ? Boolean(curve.detected[i]) : Math.abs(flux) >= DETECTION_SIGMA * error;
    return { mjd, flux, error, band, detected, limit };
  });
  return points.sort((a, b) => a.mjd - b.mjd);
}

/** True if the fluxes are those of the whole source, such as a variable star, which has no detections in difference images. */
export const isTotal = (curve) => curve?.flux_kind === "total";

/** True where the columns are there to draw a light curve. */
export function canBeDrawn(curve) {
  const size = curve?.mjd?.length;
  const complete = (column) => Array.isArray(column) && column.length === size;
  return (
    size > 0 && complete(curve.mjd) && complete(curve.band) && ((complete(curve.flux) && complete(curve.flux_err)) || complete(curve.mag))
  );
}

/** A unit in which fluxes have few digits: {name, factor}, value in the unit = value in nJy / factor. */
export function fluxUnit(points) {
  const largest = Math.max(...points.map((point) => Math.abs(point.flux)), 0);
  if (largest >= 2e7) return { name: "mJy", factor: 1e6 };
  if (largest >= 2e4) return { name: "µJy", factor: 1e3 };
  return { name: "nJy", factor: 1 };
}

/** Time from which nights are counted: the first detection, else the first observation. */
export function firstDetection(points) {
  return (points.find((point) => point.detected) || points[0]).mjd;
}

/** A sentence about the light curve for screen readers; detections are not counted for `total` flux. */
export function summary(points, total = false) {
  const detections = points.filter((point) => point.detected);
  const bands = stylesOf(points).map(({ name }) => name);
  const days = (points.at(-1).mjd - points[0].mjd).toFixed(1);
  const brightest = detections.filter((point) => point.flux > 0).sort((a, b) => b.flux - a.flux)[0];
  const peak = brightest
    ? `; brightest ${total ? "at" : "detection"} ${magnitude(brightest.flux).toFixed(2)} mag in ${brightest.band} at MJD ${brightest.mjd.toFixed(2)}`
    : "";
  return `${count(points.length, "observation")} in ${bands.join(", ")}${days > 0 ? ` over ${days} days` : ""}${total ? "" : `, ${count(detections.length, "detection")}`}${peak}`;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** Columns of the light curve as CSV. */
export function toCsv(points) {
  const rows = points.map((point) => {
    const known = (value, digits) => (Number.isFinite(value) ? Number(value.toFixed(digits)) : "");
    const mag = point.flux > 0 ? [known(magnitude(point.flux), 4), known(magnitudeError(point), 4)] : ["", ""];
    return [point.mjd, point.band, point.flux, known(point.error, 6), ...mag, point.detected, point.limit].map(csvValue).join(",");
  });
  return ["mjd,band,flux_njy,flux_err_njy,mag_ab,mag_err,detected,upper_limit", ...rows].join("\r\n") + "\r\n";
}

/** A cell of a CSV file. Text that a spreadsheet would run as a formula gets an apostrophe in front (OWASP, CSV injection). */
export function csvValue(value) {
  let text = String(value ?? "");
  if (/^[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]/.test(text) && !Number.isFinite(Number(text))) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
