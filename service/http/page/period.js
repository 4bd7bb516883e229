// Multiband periodogram: generalised Lomb-Scargle (Zechmeister & Kürster 2009) of each band with a mean of its own, added
// with the weights of VanderPlas & Ivezić (2015). Power is the share of the scatter about the bands' means that
// sinusoids of one period explain.

const TWO_PI = 2 * Math.PI;
const OVERSAMPLING = 5;
const SHORTEST_DAYS = 0.05;
const MOST_WORK = 4e8; // frequencies times observations; a second or two
const RESTART = 512; // steps after which rotated phases are computed again, before rounding errors add up

function bandsOf(points) {
  const groups = new Map();
  for (const point of points) {
    if (point.limit) continue;
    if (!groups.has(point.band)) groups.set(point.band, []);
    groups.get(point.band).push(point);
  }
  const bands = [];
  for (const group of groups.values()) {
    if (group.length < 4) continue; // a mean and a sinusoid have three parameters
    const time = Float64Array.from(group, (point) => point.mjd - points[0].mjd);
    let weight = Float64Array.from(group, (point) => 1 / point.error ** 2);
    const total = weight.reduce((sum, value) => sum + value, 0);
    weight = weight.map((value) => value / total);
    const mean = group.reduce((sum, point, i) => sum + weight[i] * point.flux, 0);
    const value = Float64Array.from(group, (point) => point.flux - mean);
    const scatter = value.reduce((sum, each, i) => sum + weight[i] * each * each, 0);
    bands.push({ time, weight, value, scatter, chi2: scatter * total });
  }
  return bands;
}

/** Power of one band at frequencies start, start + step, ...; added to `power` with a factor. */
function addPower(band, start, step, power, factor) {
  const { time, weight, value, scatter } = band;
  const size = time.length;
  const cos = new Float64Array(size);
  const sin = new Float64Array(size);
  const cosStep = time.map((t) => Math.cos(TWO_PI * step * t));
  const sinStep = time.map((t) => Math.sin(TWO_PI * step * t));
  for (let k = 0; k < power.length; k++) {
    if (k % RESTART === 0) {
      for (let i = 0; i < size; i++) {
        const phase = TWO_PI * (start + k * step) * time[i];
        cos[i] = Math.cos(phase);
        sin[i] = Math.sin(phase);
      }
    }
    let C = 0,
      S = 0,
      YC = 0,
      YS = 0,
      CC = 0,
      CS = 0;
    for (let i = 0; i < size; i++) {
      const w = weight[i],
        c = cos[i],
        s = sin[i];
      const wc = w * c,
        ws = w * s;
      C += wc;
      S += ws;
      YC += wc * value[i];
      YS += ws * value[i];
      CC += wc * c;
      CS += wc * s;
      cos[i] = c * cosStep[i] - s * sinStep[i];
      sin[i] = s * cosStep[i] + c * sinStep[i];
    }
    const SS = 1 - CC - S * S;
    CC -= C * C;
    CS -= C * S;
    const D = CC * SS - CS * CS;
    if (D > 1e-12) power[k] += (factor * (SS * YC * YC + CC * YS * YS - 2 * CS * YC * YS)) / (D * scatter);
  }
}

function powerOf(bands, start, step, size) {
  const power = new Float64Array(size);
  const total = bands.reduce((sum, band) => sum + band.chi2, 0);
  for (const band of bands) addPower(band, start, step, power, band.chi2 / total);
  return power;
}

function indexOfLargest(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

/**
 * Best period of a light curve: {period, power, shortest}, days, or null without enough observations.
 * Long light curves are searched down to a longer shortest period, so that the search stays quick.
 */
export function bestPeriod(points) {
  const bands = bandsOf(points).filter((band) => band.scatter > 0);
  const size = bands.reduce((sum, band) => sum + band.time.length, 0);
  const span = points.length ? points.at(-1).mjd - points[0].mjd : 0;
  if (size < 8 || span <= 2 * SHORTEST_DAYS) return null;
  const step = 1 / (OVERSAMPLING * span);
  const most = Math.floor(MOST_WORK / size);
  const steps = Math.min(most, Math.ceil(1 / SHORTEST_DAYS / step));
  const start = 1 / span;
  const coarse = powerOf(bands, start, step, steps);
  const around = start + step * indexOfLargest(coarse);
  const fineStep = step / 50;
  const fineStart = Math.max(around - step, start / 2);
  const fine = powerOf(bands, fineStart, fineStep, 101);
  const best = indexOfLargest(fine);
  return { period: 1 / (fineStart + fineStep * best), power: fine[best], shortest: 1 / (start + step * steps) };
}
