// Parts that the two plots share: size, axes, and the cursor of the slider.

import { html, useLayoutEffect, useRef, useState } from "./vendor/htm-preact-standalone-3.1.1.js";
import { ticks, tickText } from "./scales.js";

export const MARGIN = { left: 64, right: 14 };

/** Width of an element in CSS pixels, followed as it changes: [ref, width]. */
export function useWidth(initial = 640) {
  const ref = useRef(null);
  const [width, setWidth] = useState(initial);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.max(260, Math.round(ref.current.clientWidth)));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** Horizontal axis with a label below, and grid lines over the height of the plot. */
export function AxisX({ scale, top, bottom, label, wanted }) {
  const values = ticks(scale.domain, wanted);
  const texts = tickText(values);
  const [start, end] = scale.domain.map(scale);
  return html`<g class="axis">
    ${values.map(
      (value, i) => html`<g key=${texts[i]}>
        <line class="grid" x1=${scale(value)} x2=${scale(value)} y1=${top} y2=${bottom} />
        <text x=${scale(value)} y=${bottom + 16} text-anchor="middle">${texts[i]}</text>
      </g>`,
    )}
    <line class="frame" x1=${start} x2=${end} y1=${bottom} y2=${bottom} />
    ${label && html`<text class="label" x=${(start + end) / 2} y=${bottom + 33} text-anchor="middle">${label}</text>`}
  </g>`;
}

/** Second horizontal axis above the plot: days since an epoch. */
export function AxisNights({ scale, epoch, top, wanted, start: first = "detection" }) {
  const days = ticks(
    scale.domain.map((value) => value - epoch),
    wanted,
  );
  const texts = tickText(days);
  const [start, end] = scale.domain.map(scale);
  return html`<g class="axis">
    ${days.map(
      (value, i) => html`<g key=${texts[i]}>
        <line class="frame" x1=${scale(epoch + value)} x2=${scale(epoch + value)} y1=${top - 4} y2=${top} />
        <text x=${scale(epoch + value)} y=${top - 8} text-anchor="middle">${texts[i]}</text>
      </g>`,
    )}
    <line class="frame" x1=${start} x2=${end} y1=${top} y2=${top} />
    <text class="label" x=${(start + end) / 2} y=${top - 24} text-anchor="middle">Days since the first ${first}</text>
  </g>`;
}

export function AxisY({ scale, left, right, label, wanted = 5 }) {
  const values = ticks(scale.domain, wanted);
  const texts = tickText(values);
  const [start, end] = scale.domain.map(scale);
  const middle = (start + end) / 2;
  return html`<g class="axis">
    ${values.map(
      (value, i) => html`<g key=${texts[i]}>
        <line class="grid" x1=${left} x2=${right} y1=${scale(value)} y2=${scale(value)} />
        <text x=${left - 7} y=${scale(value) + 4} text-anchor="end">${texts[i]}</text>
      </g>`,
    )}
    <line class="frame" x1=${left} x2=${left} y1=${start} y2=${end} />
    <text class="label" transform=${`translate(11 ${middle}) rotate(-90)`} text-anchor="middle">${label}</text>
  </g>`;
}

export function Cursor({ x, top, bottom }) {
  return html`<line class="cursor" x1=${x} x2=${x} y1=${top} y2=${bottom} />`;
}

/** Horizontal position of a pointer event within a plot, in the units of its viewBox. */
export function pointerPosition(event) {
  const svg = event.currentTarget.ownerSVGElement || event.currentTarget;
  const box = svg.getBoundingClientRect();
  const { width, height } = svg.viewBox.baseVal;
  return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
}
