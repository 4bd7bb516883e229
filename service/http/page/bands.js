// Colours and symbols of filters. u to y have those of Rubin (RTN-045), which suit g and r of ZTF as well; page.css has
// the colours for light and dark backgrounds.

const BANDS = [
  ["u", "u", "circle"],
  ["g", "g", "up"],
  ["r", "r", "down"],
  ["i", "i", "square"],
  ["z", "z", "star"],
  ["Y", "y", "pentagon"],
  ["y", "y", "pentagon"],
  ["c", "cyan", "diamond"],
  ["o", "orange", "hexagon"],
  ["BP", "blue", "circle"],
  ["G", "green", "up"],
  ["RP", "red", "down"],
  ["U", "violet", "circle"],
  ["B", "blue", "diamond"],
  ["V", "green", "square"],
  ["R", "red", "hexagon"],
  ["I", "brown", "square"],
  ["w", "grey", "circle"],
  ["C", "grey", "diamond"],
];
const OTHERS = [
  ["violet", "star"],
  ["cyan", "pentagon"],
  ["brown", "hexagon"],
  ["grey", "star"],
];
const KNOWN = new Map(BANDS.map(([name, color, symbol], order) => [name, { color, symbol, order }]));

/** Styles of the bands of a light curve, in order of wavelength: [{name, color, symbol}]. */
export function stylesOf(points) {
  const names = [...new Set(points.map((point) => point.band))];
  let unknown = 0;
  const styles = names.map((name) => {
    if (KNOWN.has(name)) return { name, ...KNOWN.get(name) };
    const [color, symbol] = OTHERS[unknown % OTHERS.length];
    return { name, color, symbol, order: BANDS.length + unknown++ };
  });
  return styles.sort((a, b) => a.order - b.order);
}

function polygon(x, y, radius, corners, turn) {
  const points = Array.from({ length: corners }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / corners;
    return `${(x + radius * Math.sin(angle)).toFixed(1)},${(y - radius * Math.cos(angle)).toFixed(1)}`;
  });
  return `M${points.join("L")}Z`;
}

function star(x, y, radius) {
  const points = Array.from({ length: 10 }, (_, i) => {
    const angle = (Math.PI * i) / 5;
    const length = i % 2 ? radius * 0.5 : radius;
    return `${(x + length * Math.sin(angle)).toFixed(1)},${(y - length * Math.cos(angle)).toFixed(1)}`;
  });
  return `M${points.join("L")}Z`;
}

const SYMBOLS = {
  circle: (x, y, r) => `M${(x - r).toFixed(1)},${y.toFixed(1)}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0Z`,
  up: (x, y, r) => polygon(x, y + 0.15 * r, 1.25 * r, 3, 0),
  down: (x, y, r) => polygon(x, y - 0.15 * r, 1.25 * r, 3, Math.PI),
  square: (x, y, r) => polygon(x, y, 1.25 * r, 4, Math.PI / 4),
  diamond: (x, y, r) => polygon(x, y, 1.3 * r, 4, 0),
  star: (x, y, r) => star(x, y, 1.5 * r),
  pentagon: (x, y, r) => polygon(x, y, 1.2 * r, 5, 0),
  hexagon: (x, y, r) => polygon(x, y, 1.15 * r, 6, 0),
};

/** SVG path of a marker. */
export function markerPath(symbol, x, y, radius) {
  return SYMBOLS[symbol](x, y, radius);
}
