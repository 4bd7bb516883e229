// Light curves as points for plots and tables: fluxes in nJy, AB magnitudes, signal-to-noise ratios.

import { stylesOf } from "./bands.js";

const ZERO_POINT = 31.4; // AB magnitude of 1 nJy
const NJY = { nJy: 1, uJy: 1e3, FLUXCAL: 10 ** ((ZERO_POINT - 27.5) / 2.5) };
export const DETECTION_SIGMA = 5;
export const LIMIT_SIGMA = 3; // below this signal-to-noise ratio a magnitude is shown as an upper limit

export const magnitude = (flux) => ZERO_POINT - 2.5 * Math.log10(flux);
export const magnitudeError = (point) => (2.5 / Math.LN10) * (point.error / point.flux);
export const upperLimit = (point) => magnitude(DETECTION_SIGMA * point.error);

/**
 * Points of a light curve in the form of /v1/classify, in order of time.
 * Returns [{mjd, flux, error, band, detected}], flux and error in nJy.
 */
export function pointsOf(curve) {
  const factor = NJY[curve.flux_unit || "nJy"] || 1;
  const points = curve.mjd.map((mjd, i) => {
    const flux = curve.flux[i] * factor;
    const error = curve.flux_err[i] * factor;
    const detected = curve.detected ? Boolean(curve.detected[i]) : Math.abs(flux) >= DETECTION_SIGMA * error;
    return { mjd, flux, error, band: String(curve.band[i]), detected };
  });
  return points.sort((a, b) => a.mjd - b.mjd);
}

/** True where /v1/classify would accept the columns well enough to draw them. */
export function canBeDrawn(curve) {
  const columns = [curve?.mjd, curve?.flux, curve?.flux_err, curve?.band];
  return columns.every((column) => Array.isArray(column) && column.length === curve.mjd.length && column.length > 0);
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

/** A sentence about the light curve for screen readers. */
export function summary(points) {
  const detections = points.filter((point) => point.detected);
  const bands = stylesOf(points).map(({ name }) => name);
  const days = points.at(-1).mjd - points[0].mjd;
  const brightest = detections.filter((point) => point.flux > 0).sort((a, b) => b.flux - a.flux)[0];
  const peak = brightest
    ? `; brightest detection ${magnitude(brightest.flux).toFixed(2)} mag in ${brightest.band} at MJD ${brightest.mjd.toFixed(2)}`
    : "";
  return `${count(points.length, "observation")} in ${bands.join(", ")} over ${days.toFixed(1)} days, ${count(detections.length, "detection")}${peak}`;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** Columns of the light curve as CSV. */
export function toCsv(points) {
  const rows = points.map((point) => {
    const positive = point.flux > 0;
    const mag = positive ? [magnitude(point.flux).toFixed(4), magnitudeError(point).toFixed(4)] : ["", ""];
    return [point.mjd, point.band, point.flux, point.error, ...mag, point.detected].map(csvValue).join(",");
  });
  return ["mjd,band,flux_njy,flux_err_njy,mag_ab,mag_err,detected", ...rows].join("\r\n") + "\r\n";
}

export function csvValue(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
