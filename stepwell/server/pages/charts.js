// Charts over the window, drawn by uPlot: axes at round times and numbers, values where the pointer is, colours of the page.

import { $, bytes } from "./base.js";

const HEIGHT = 190;
const EMPTY = { hits: 1000, copies: 2 ** 20 };  // tops of charts that have nothing to show; else 1
const POWERS = Array.from({ length: 45 }, (_, at) => 2 ** at);  // steps of an axis of bytes
const charts = new Map();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

const clock = (value) => new Date(value * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: value % 60 ? "2-digit" : undefined });

// Both axes; the numbers of the second in `write`'s words.
function axes(write, steps) {
  const look = { stroke: () => colour("soft"), grid: { stroke: () => colour("line"), width: 1 }, ticks: { stroke: () => colour("line"), width: 1 } };
  return [
    { ...look, space: 70, size: 28, values: (_, splits) => splits.map(clock) },
    { ...look, size: 74, incrs: steps, values: (_, splits) => splits.map((value) => value ? write(value) : "0") },
  ];
}

function series({ name, fill, dash, stacked }, write, told) {
  const paint = () => colour(fill);
  const shown = stacked
    ? { fill: paint, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.92, 60] }) }
    : { width: 2, dash, spanGaps: true, points: { show: (_, at, from, to) => to - from < 3, size: 5 } };
  return { label: name, stroke: paint, ...shown, value: (_, value, at, index) => {
    const exact = index === null || index === undefined ? null : told()[at - 1][index];
    return exact === null || exact === undefined ? "–" : write(exact);
  } };
}

function create(id, parts, write, top) {
  let values = [];
  const box = $(id), options = {
    width: Math.max(240, box.clientWidth), height: HEIGHT, axes: axes(write, write === rate ? POWERS : undefined),
    scales: { y: { range: (_, low, high) => [0, top || (high > 0 ? high * 1.08 : EMPTY[id] || 1)] } },
    series: [{ value: (_, value) => value === null ? "now" : new Date(value * 1000).toLocaleTimeString("en-GB"), label: "at" }, ...parts.map((part) => series(part, write, () => values))],
    cursor: { drag: { x: false, y: false }, points: { show: !parts[0].stacked } },
  };
  const plot = new uPlot(options, [[], ...parts.map(() => [])], box);
  new ResizeObserver(() => box.clientWidth && plot.setSize({ width: box.clientWidth, height: HEIGHT })).observe(box);
  return { plot, tell: (told) => { values = told; } };
}

/* Bytes a second, which an axis divides by powers of two. */
export const rate = (value) => bytes(value) + "/s";

/* Draw `columns`, a list of values for each part over the times `x` (seconds since 1970). Stacked parts are given from the top down. */
export function chart(id, x, parts, columns, write, label, top) {
  const key = parts.map((part) => part.name).join();
  let known = charts.get(id);
  if (known && known.key !== key) { known.plot.destroy(); known = null; }
  if (!known) charts.set(id, known = { key, ...create(id, parts, write, top) });
  known.tell(columns);
  known.plot.setData([x, ...(parts[0].stacked ? piled(columns) : columns)]);
  $(id).setAttribute("aria-label", label);
}

// Each part as high as itself and all below it: the next one is drawn over it.
function piled(columns) {
  const sums = columns[0].map(() => 0);
  return columns.toReversed().map((column) => column.map((value, at) => sums[at] += value || 0)).reverse();
}

// The page's colours have changed.
export function recolour() {
  for (const { plot } of charts.values()) plot.redraw(false);
}
