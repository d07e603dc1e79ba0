// The tab that shows the last minutes of the server, from the events of dashboard/events.

import { $, NAMES, SOURCES, TIERS, KeyNeeded, age, ask, bytes, events, legend, make, say, seconds, shape, share, short, sum, whole } from "./base.js";

const BINS = 100;
const points = new Map();
let paused = false, listening = null;

/* The window in BINS equal parts; each is the list of its slices. */
function bins(slice) {
  const out = Array.from({ length: BINS }, () => []), first = slice.now - slice.count + 1;
  for (const [t, point] of points) {
    const at = Math.floor((t - first) * BINS / slice.count);
    if (at >= 0 && at < BINS) out[at].push(point);
  }
  return out;
}
function stacked(id, parts, names, label) {
  const columns = parts.map((list) => names.map((name) => sum(list.map((p) => p[name]))));
  const top = Math.max(1, ...columns.map(sum)), width = 600 / BINS, shapes = [];
  columns.forEach((column, x) => {
    let y = 138;
    column.forEach((value, i) => {
      const height = 134 * value / top;
      if (height > 0) shapes.push(shape("rect", { x: x * width, y: y - height, width: width * 0.9, height, fill: `var(--${names[i]})` }));
      y -= height;
    });
  });
  $(id).replaceChildren(...shapes);
  $(id).setAttribute("aria-label", label);
  return top;
}
function lines(id, parts, series, write, most) {
  const curves = series.map(([read]) => parts.map((list) => {
    const known = list.map(read).filter((v) => v !== null && v !== undefined);
    return known.length ? Math.max(...known) : null;
  }));
  const known = curves.flat().filter((v) => v !== null), top = most || (known.length ? Math.max(...known) : 1);
  const shapes = curves.map((curve, i) => {
    let path = "", pen = false;
    curve.forEach((value, x) => {
      if (value === null) { pen = false; return; }
      const at = `${((x + 0.5) * 600 / BINS).toFixed(1)} ${(138 - 132 * value / top).toFixed(1)}`;
      path += (pen ? "L" : "M") + at + (pen ? "" : "l0.01 0");
      pen = true;
    });
    return shape("path", { d: path || "M0 0", fill: "none", stroke: series[i][1], "stroke-width": 2, "stroke-linecap": "round", "vector-effect": "non-scaling-stroke", "stroke-dasharray": series[i][2] });
  });
  $(id).replaceChildren(...shapes);
  const last = (curve) => curve.filter((v) => v !== null).at(-1);
  $(id).setAttribute("aria-label", known.length ? series.map(([, , , text], i) => `${text} ${write(last(curves[i]))}`).join(", ") : "no data yet");
  $(id + "-top").textContent = known.length ? (most ? "to " : "top: ") + write(top) : "";
}

function figures(s, recent) {
  const tokens = s.totals.tokens, all = sum(SOURCES.map((n) => tokens[n]));
  const asked = all - s.totals.lost.not_read;  // calls that never read the cache are no part of a hit rate
  const span = Math.max(1, recent.length) * s.slice.seconds;
  const late = recent.filter((p) => p.ttft50 !== null).at(-1), flow = recent.filter((p) => p.itl50 !== null).at(-1);
  const rows = [
    ["Prompt tokens reused", share(all - tokens.recomputed, asked)],
    ["… from device", share(tokens.device, asked)],
    ["… from host", share(tokens.host, asked)],
    ["… from disk", share(tokens.disk, asked)],
    ["Generated, tokens/s", recent.length ? short.format(sum(recent.map((p) => p.generated)) / span) : "–"],
    ["First token, p50 / p95", late ? `${seconds(late.ttft50)} / ${seconds(late.ttft95)}` : "–"],
    ["Between tokens, p50 / p95", flow ? `${seconds(flow.itl50)} / ${seconds(flow.itl95)}` : "–"],
    ["In flight", whole.format(s.open)],
    ["Leases", whole.format(s.gauges.leases || 0)],
    ["Running for", age(s.seconds)],
  ];
  $("figures").replaceChildren(...rows.map(([name, value]) => {
    const box = make("div");
    box.append(make("dt", name), make("dd", value));
    return box;
  }));
}
function tiers(s, parts) {
  const boxes = [];
  for (const [tier, pages] of Object.entries(s.pages)) {
    const total = (pages.free || 0) + (pages.cached || 0) + (pages.private || 0);
    if (!total) continue;
    const row = make("div", undefined, "row"), bar = make("div", undefined, "bar");
    const size = s.page_bytes ? bytes(total * s.page_bytes) : whole.format(total) + " pages";
    row.append(make("span", `${tier}, ${size}`), make("span", `${share(total - pages.free, total)} used`));
    bar.style.setProperty("--tier", `var(--${tier})`);
    const parts = [["leased", pages.leased || 0], ["cached", (pages.cached || 0) - (pages.leased || 0)], ["private", pages.private || 0]];
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", `${tier}: ` + parts.map(([n, v]) => `${n} ${share(v, total)}`).join(", ") + `, free ${share(pages.free, total)}`);
    for (const [name, value] of parts) {
      const part = make("span", undefined, name);
      part.style.width = 100 * value / total + "%";
      bar.append(part);
    }
    boxes.push(row, bar);
  }
  if (boxes.length) $("tiers").replaceChildren(...boxes);
  const there = TIERS.filter((tier) => parts.some((list) => list.some((p) => tier in p.used)));
  lines("fill", parts, there.map((tier) => [(p) => p.used[tier], `var(--${tier})`, "none", tier]), (v) => share(v, 1) + " used", 1);
}
function copies(s, parts) {
  const values = parts.map((list) => sum(list.map((p) => p.copied)) / (s.slice.seconds * s.slice.count / BINS));
  const top = Math.max(1, ...values), width = 600 / BINS;
  $("copies").replaceChildren(...values.map((v, x) => shape("rect", { x: x * width, y: 138 - 134 * v / top, width: width * 0.9, height: 134 * v / top, fill: "var(--host)" })));
  $("copies").setAttribute("aria-label", `bytes a second, highest ${bytes(top)}`);
  $("copies-top").textContent = Math.max(...values) > 0 ? "top: " + bytes(top) + "/s" : "";
  const rows = s.copied.filter(([, , count]) => count).map(([source, target, count]) => {
    const row = make("div", undefined, "row");
    row.append(make("span", `${source} → ${target}`), make("span", bytes(count)));
    return row;
  });
  $("copied").replaceChildren(...(rows.length ? rows : [make("p", "No copy yet.", "note")]));
}
function lost(s) {
  const known = Object.entries(s.totals.lost).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  if (!known.length) return;
  const top = known[0][1];
  $("lost").replaceChildren(...known.flatMap(([name, count]) => {
    const row = make("div", undefined, "row"), bar = make("div", undefined, "bar"), part = make("span");
    row.append(make("span", name.replaceAll("_", " ")), make("span", whole.format(count)));
    part.style.cssText = `width:${100 * count / top}%;background:var(--recomputed)`;
    bar.style.height = "8px";
    bar.append(part);
    return [row, bar];
  }));
}
function flight(s) {
  const phases = ["waiting", "parked", "running", "draining"].map((name) => `${s.queues[name] || 0} ${name}`).join(" · ");
  $("phases").textContent = phases + (s.open > s.requests.length ? ` · the oldest ${s.requests.length} of ${s.open}` : "");
  $("requests").replaceChildren(...s.requests.map((r) => {
    const row = make("tr");
    row.append(make("td", r.phase));
    for (const name of ["prompt", "device", "host", "disk", "generated"]) row.append(make("td", whole.format(r[name])));
    row.append(make("td", age(r.seconds)), make("td", r.id, "id"));
    return row;
  }));
}
/* One line a path: rungs above the rail, KV by tier below it, an arrow where the last request resumed. */
function ladder(path) {
  const part = (count) => 100 * count / path.known + "%", nodes = [make("i", undefined, "rail")];
  const put = (name, left, tier) => {
    const node = make("i", undefined, name);
    node.style.left = left;
    if (tier) node.style.setProperty("--tier", `var(--${tier})`);
    nodes.push(node);
    return node;
  };
  for (const [tier, start, end] of path.kv) put("kv " + tier, part(start), tier).style.width = part(end - start);
  for (const [position, tier, kind] of path.rungs) put("rung " + tier, part(position), tier).title = `${whole.format(position)}, ${tier}${kind ? ", " + kind.replace("_", " ") : ""}`;
  if (path.boundary) put("here", part(Math.min(path.boundary, path.known)));
  const line = make("div", undefined, "ladder"), count = (tier) => path.rungs.filter((r) => r[1] === tier).length;
  const held = TIERS.map((tier) => [tier, sum(path.kv.filter((run) => run[0] === tier).map((run) => run[2] - run[1]))]).filter((pair) => pair[1]);
  const rungs = [...TIERS, "gone"].filter(count).map((tier) => `${count(tier)} ${tier}`).join(", ") || "none";
  line.setAttribute("role", "img");
  line.setAttribute("aria-label", `rungs: ${rungs}; KV: ${held.map(([tier, tokens]) => `${tier} ${share(tokens, path.known)}`).join(", ") || "none"}; last request resumed at ${whole.format(path.boundary)}`);
  line.append(...nodes);
  return line;
}
function paths(s) {
  if (!s.ladders.length) return;
  $("paths").replaceChildren(...s.ladders.map((path) => {
    const box = make("div", undefined, "path"), row = make("div", undefined, "row"), name = make("span");
    name.append(path.session ? "session " : "", make("code", path.session || path.request), `, ${whole.format(path.known)} tokens`);
    const from = path.boundary ? `resumed at ${whole.format(path.boundary)} of ${whole.format(path.prompt)} from ${path.from}` : `computed all ${whole.format(path.prompt)}`;
    row.append(name, make("span", `${from} (${path.reason.replaceAll("_", " ")}), ${age(path.ago)} ago`));
    box.append(row, ladder(path));
    return box;
  }));
}
/* The window in two sentences, for who has never seen the rest. */
function span(total) {
  if (total < 60) return seconds(total);
  const minutes = Math.round(total / 60);
  return minutes < 120 ? `${minutes} ${minutes === 1 ? "minute" : "minutes"}` : `${(total / 3600).toFixed(1)} hours`;
}
function story() {
  const all = [...points.values()], of = (name) => sum(all.map((p) => p[name]));
  const cached = sum(TIERS.map(of)), tokens = cached + of("recomputed"), saved = of("saved"), admitted = of("admitted");
  if (!tokens) return "No prompt in the last ten minutes.";
  const first = `In the last ten minutes ${share(cached, tokens)} of ${short.format(tokens)} prompt tokens came from the cache.`;
  if (!saved) return first;
  return `The cache saved about ${span(saved)} of prefill. ${first} Without it each of ${short.format(admitted)} prompts would have waited about ${span(saved / admitted)} longer, on average.`;
}
function draw(s) {
  for (const point of s.points) points.set(point.t, point);
  for (const t of points.keys()) if (t <= s.slice.now - s.slice.count) points.delete(t);
  if (paused) return;
  const parts = bins(s.slice), recent = [...points.values()].filter((p) => p.t > s.slice.now - 6 && p.t < s.slice.now);
  $("model").textContent = s.model;
  $("story").textContent = story();
  figures(s, recent);
  tiers(s, parts);
  const tokens = s.totals.tokens, all = sum(SOURCES.map((n) => tokens[n]));
  const top = stacked("hits", parts, SOURCES, SOURCES.map((n) => `${n} ${share(tokens[n], all)}`).join(", ") + " of all prompt tokens");
  $("hits-top").textContent = all ? `top: ${short.format(top)} tokens in ${(s.slice.seconds * s.slice.count / BINS).toFixed(0)} s` : "";
  lines("ttft", parts, [[(p) => p.ttft50, "var(--host)", "none", "median"], [(p) => p.ttft95, "var(--recomputed)", "5 4", "95th percentile"]], seconds);
  lines("itl", parts, [[(p) => p.itl50, "var(--host)", "none", "median"], [(p) => p.itl95, "var(--recomputed)", "5 4", "95th percentile"]], seconds);
  copies(s, parts);
  lost(s);
  paths(s);
  flight(s);
  $("joint").textContent = s.joint;
  if (s.dead !== null) say("lost", "The engine has stopped: " + s.dead);
  else if (s.draining) say("lost", "Shutting down");
  else say("live", "Live");
}

// Follow the server until `leave`.
export async function listen() {
  if (listening) return;
  const mine = listening = new AbortController();
  while (!mine.signal.aborted) {
    try {
      const answer = await ask("dashboard/events", { signal: mine.signal });
      if (!answer.ok) throw new Error(answer.status);
      for await (const data of events(answer)) draw(JSON.parse(data));
    } catch (error) {
      if (error instanceof KeyNeeded) { listening = null; return; }
    }
    if (mine.signal.aborted) return;
    say("lost", "Connection lost, trying again …");
    await new Promise((done) => setTimeout(done, 2000));
  }
}

export function leave() {
  listening?.abort();
  listening = null;
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
});
legend($("hits-legend"), SOURCES.map((name) => [NAMES[name], `var(--${name})`]));
legend($("tier-legend"), [["used by requests or copies", "var(--recomputed)"], ["cached (darker: leased)", "var(--device)"], ["free", "var(--free)"]]);
legend($("paths-legend"), [...TIERS.map((tier) => [tier, `var(--${tier})`]), ["a rung that is gone", "none"], ["▾ where the last request resumed", ""]]);
for (const id of ["ttft", "itl"]) legend($(id + "-legend"), [["median", "var(--host)"], ["95th percentile (dashed)", "var(--recomputed)"]]);
