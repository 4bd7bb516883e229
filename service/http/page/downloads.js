// Downloads: the plots as SVG and PNG, tables as CSV. All are made in the browser.

import { csvValue } from "./photometry.js";
import { MARGIN } from "./plot.js";

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linejoin",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];
const GAP = 12;
const TITLE = 38;
const LEGEND_LINE = 20;
const PIXELS = 2; // of a PNG for each unit of the plot

/** A name that is safe in a file system and in a shell. */
export function fileName(text, extension) {
  const safe = String(text)
    .replace(/[^A-Za-z0-9._+-]+/g, "_")
    .replace(/^[._-]+/, "")
    .slice(0, 80);
  return `${safe || "light_curve"}${extension}`;
}

export function save(content, name, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function inlineStyles(original, copy) {
  const style = getComputedStyle(original);
  for (const property of PROPERTIES) copy.setAttribute(property, style.getPropertyValue(property));
  copy.removeAttribute("class");
  for (let i = 0; i < original.children.length; i++) inlineStyles(original.children[i], copy.children[i]);
}

function element(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

/** Draw the symbols and names of a plot's legend in lines; returns the position below them. */
function addLegend(sheet, items, top, width, style) {
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = `12px ${style.fontFamily}`;
  let left = MARGIN.left;
  for (const item of items) {
    const text = item.textContent.replace(/\s+/g, " ").trim();
    const size = 20 + measure.measureText(text).width + GAP;
    if (left + size > width && left > MARGIN.left) [left, top] = [MARGIN.left, top + LEGEND_LINE];
    const symbol = item.querySelector("svg");
    if (symbol) {
      const copy = symbol.cloneNode(true);
      inlineStyles(symbol, copy);
      for (const [name, value] of Object.entries({ x: left, y: top, width: 14, height: 14 })) copy.setAttribute(name, value);
      sheet.append(copy);
    } else {
      const fill = getComputedStyle(item.querySelector(".swatch")).backgroundColor;
      sheet.append(element("rect", { x: left, y: top + 2, width: 11, height: 11, rx: 3, fill }));
    }
    sheet.append(element("text", { x: left + 18, y: top + 11, "font-size": 12, fill: style.color, "font-family": style.fontFamily }, text));
    left += size;
  }
  return top + LEGEND_LINE;
}

/** One SVG document of all plots of the page, below a title. */
export function plotsAsSvg(title) {
  const plots = [...document.querySelectorAll("svg[data-plot]")];
  const width = Math.max(...plots.map((plot) => plot.width.baseVal.value));
  const sheet = document.createElementNS(SVG, "svg");
  const style = getComputedStyle(document.body);
  let top = TITLE;
  for (const plot of plots) {
    top = addLegend(sheet, plot.closest(".panel").querySelectorAll(".legend > li"), top, width, style);
    const copy = plot.cloneNode(true);
    inlineStyles(plot, copy);
    copy.querySelectorAll("[data-plot] > :where(.surface, .near)").forEach((each) => each.remove());
    copy.setAttribute("y", top);
    sheet.append(copy);
    top += plot.height.baseVal.value + GAP;
  }
  const background = element("rect", { width, height: top, fill: getComputedStyle(document.querySelector(".panel")).backgroundColor });
  const font = { "font-size": 15, "font-weight": 600, fill: style.color, "font-family": style.fontFamily };
  sheet.prepend(background, element("text", { x: 14, y: 24, ...font }, title));
  for (const [name, value] of Object.entries({ xmlns: SVG, width, height: top, viewBox: `0 0 ${width} ${top}` }))
    sheet.setAttribute(name, value);
  return { text: new XMLSerializer().serializeToString(sheet), width, height: top };
}

export async function plotsAsPng(title) {
  const { text, width, height } = plotsAsSvg(title);
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * PIXELS;
  canvas.height = height * PIXELS;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Classification after every detection as CSV, one column per class. */
export function stepsToCsv(steps) {
  const names = Object.keys(steps[0].probabilities);
  const header = ["mjd", "detections", "class", "confidence", "prediction_set", "unusual", "novelty", ...names];
  const rows = steps.map((step) => [
    step.mjd ?? "",
    step.detections ?? "",
    step.class,
    step.confidence,
    (step.prediction_set || []).join("; "),
    step.unusual ?? "",
    step.novelty ?? "",
    ...names.map((name) => step.probabilities[name]),
  ]);
  return [header, ...rows].map((row) => row.map(csvValue).join(",")).join("\r\n") + "\r\n";
}
