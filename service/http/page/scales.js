// Linear axes: position of a value, and round tick values.

export function linear([low, high], [start, end]) {
  const factor = (end - start) / (high - low || 1);
  const scale = (value) => start + (value - low) * factor;
  scale.invert = (position) => low + (position - start) / factor;
  scale.domain = [low, high];
  return scale;
}

/** About `wanted` round values within [low, high]. */
export function ticks([low, high], wanted) {
  const [from, to] = low < high ? [low, high] : [high, low];
  const rough = (to - from) / Math.max(1, wanted);
  if (!(rough > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) || 10);
  const values = [];
  for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++) values.push(i * step);
  return values;
}

/** Text of ticks, all with the same number of decimals. */
export function tickText(values) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : 1;
  const decimals = Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) - 1e-9)));
  return values.map((value) => {
    const text = (Math.abs(value) < step / 1e6 ? 0 : value).toFixed(decimals);
    return text.replace("-", "−");
  });
}

/** Extend an interval by a fraction of its length at both ends. */
export function padded([low, high], fraction, least = 1e-9) {
  const margin = Math.max((high - low) * fraction, least);
  return [low - margin, high + margin];
}
