// The tab that shows the last minutes or hours of the server, from the events of dashboard/events.

import { $, NAMES, SOURCES, TIERS, KeyNeeded, age, ask, bytes, events, legend, make, say, seconds, share, short, sum, whole } from "./base.js";
import { chart, rate, recolour } from "./charts.js";

const BINS = 120;
const WORDS = { 60: "last minute", 600: "last ten minutes", 3600: "last hour", 21600: "last six hours", 86400: "last day" };
const WHY = {
  new: "Text that no earlier prompt began with: nothing to reuse.",
  no_rung: "Keys and values were there, but no place to resume at: a shorter --state-checkpoint-interval-tokens leaves more.",
  evicted_rung: "The place to resume at had been dropped for want of memory.",
  evicted_kv: "Keys and values had been dropped for want of memory.",
  no_room: "The device had no room for what would have been loaded.",
  partial_chunk: "The external store reads whole chunks only.",
  too_small: "Computing was quicker than loading so little.",
  failed_leg: "A load failed; the request went on from where it could.",
  not_read: "The call asked not to read the cache.",
};
const points = new Map();
let paused = false, listening = null;

/* The window in at most BINS equal parts, each the list of its slices; and when each began, in seconds since 1970. */
function bins(slice) {
  const each = Math.ceil(slice.count / BINS), count = Math.ceil(slice.count / each), first = slice.now - slice.count + 1;
  const parts = Array.from({ length: count }, () => []), now = Date.now() / 1000, length = each * slice.seconds;
  for (const [t, point] of points) parts[Math.floor((t - first) / each)]?.push(point);
  return { parts, seconds: length, x: parts.map((_, at) => Math.round(now - (count - 1 - at) * length)) };
}
const total = (list, name) => sum(list.map((p) => p[name]));
const most = (list, read) => list.reduce((top, p) => { const v = read(p); return v === null || v === undefined ? top : Math.max(top ?? v, v); }, null);
const latest = (column) => column.filter((v) => v !== null).at(-1);

function sources(window, s) {
  const columns = SOURCES.toReversed().map((name) => window.parts.map((list) => total(list, name)));
  const tokens = s.totals.tokens, all = sum(SOURCES.map((n) => tokens[n]));
  const parts = SOURCES.toReversed().map((name) => ({ name: NAMES[name], fill: name, stacked: true }));
  chart("hits", window.x, parts, columns, (v) => short.format(v), SOURCES.map((n) => `${NAMES[n]} ${share(tokens[n], all)}`).join(", ") + " of all prompt tokens");
}
function lines(id, window, series, write, top) {
  const columns = series.map(([, , , read]) => window.parts.map(read)), known = columns.some((column) => latest(column) !== undefined);
  const label = known ? series.map(([name], i) => `${name} ${latest(columns[i]) === undefined ? "unknown" : write(latest(columns[i]))}`).join(", ") : "no data yet";
  chart(id, window.x, series.map(([name, fill, dash]) => ({ name, fill, dash })), columns, write, label, top);
}
const mean = (list) => total(list, "firsts") ? total(list, "ttft") / total(list, "firsts") : null;
const without = (list) => mean(list) === null || !total(list, "admitted") ? null : mean(list) + total(list, "saved") / total(list, "admitted");

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
    ["Held in use (leases)", whole.format(s.gauges.leases || 0)],
    ["Running for", age(s.seconds)],
  ];
  $("figures").replaceChildren(...rows.map(([name, value]) => {
    const box = make("div");
    box.append(make("dt", name), make("dd", value));
    return box;
  }));
}
function tiers(s, window) {
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
  const there = TIERS.filter((tier) => window.parts.some((list) => list.some((p) => tier in p.used)));
  if (there.length) lines("fill", window, there.map((tier) => [tier, tier, undefined, (list) => most(list, (p) => p.used[tier])]), (v) => Math.round(100 * v) + " %", 1);
}
function copies(s, window) {
  const values = window.parts.map((list) => total(list, "copied") / window.seconds);
  chart("copies", window.x, [{ name: "copied", fill: "host", stacked: true }], [values], rate, `bytes a second, highest ${bytes(Math.max(...values))}`);
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
    const reason = make("span", name.replaceAll("_", " "), "term");
    reason.tabIndex = 0;
    reason.dataset.tip = WHY[name] ?? name;
    row.append(reason, make("span", whole.format(count)));
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
  const seen = new Set(), once = s.ladders.filter(({ session }) => !session || (!seen.has(session) && seen.add(session)));
  $("paths").replaceChildren(...once.map((path) => {
    const box = make("div", undefined, "path"), row = make("div", undefined, "row"), name = make("span");
    name.append(path.session ? "session " : "", make("code", path.session || path.request), `, ${whole.format(path.known)} tokens`);
    const from = path.boundary ? `resumed at ${whole.format(path.boundary)} of ${whole.format(path.prompt)} from ${path.from}` : `computed all ${whole.format(path.prompt)}`;
    const why = path.reason === "complete" ? "" : ` (${path.reason.replaceAll("_", " ")})`;
    row.append(name, make("span", `${from}${why}, ${age(path.ago)} ago`));
    box.append(row, ladder(path));
    return box;
  }));
}
/* The window in plain words, for who has never seen the rest. */
function span(total) {
  if (total < 60) return seconds(total);
  const minutes = Math.round(total / 60);
  return minutes < 120 ? `${minutes} ${minutes === 1 ? "minute" : "minutes"}` : `${(total / 3600).toFixed(1)} hours`;
}
function story(words) {
  const all = [...points.values()], of = (name) => total(all, name);
  const cached = sum(TIERS.map(of)), tokens = cached + of("recomputed"), saved = of("saved");
  if (!tokens) return [`No prompt in the ${words}.`, "Send one, in the chat or by the API, and this page tells what the cache saved."];
  const came = `${share(cached, tokens)} of ${short.format(tokens)} prompt tokens came from memory`;
  const first = saved ? `The cache saved ${span(saved)} of prefill in the ${words}: ${came}.` : `In the ${words} ${came}.`;
  const measured = mean(all) === null ? "" : `First token after ${seconds(mean(all))} on average, measured over ${short.format(of("firsts"))} answers`;
  const guessed = measured && saved ? `; without the cache after about ${seconds(without(all))}, estimated from the speed at which this server computes prompts (prefill)` : "";
  return [first, measured && measured + guessed + "."];
}
function draw(s) {
  for (const point of s.points) points.set(point.t, point);
  for (const t of points.keys()) if (t <= s.slice.now - s.slice.count) points.delete(t);
  if (paused) return;
  const window = bins(s.slice), recent = [...points.values()].filter((p) => p.t > s.slice.now - (s.slice.seconds < 60 ? 6 : 2));
  const [first, second] = story(WORDS[$("window").value]);
  $("model").textContent = s.model;
  $("story").textContent = first;
  $("detail").textContent = second;
  figures(s, recent);
  tiers(s, window);
  sources(window, s);
  lines("ttft", window, [
    ["measured, average", "device", undefined, mean],
    ["without the cache, estimated", "recomputed", [6, 4], without],
    ["measured, 95 % are faster", "soft", [2, 3], (list) => most(list, (p) => p.ttft95)],
  ], seconds);
  lines("itl", window, [
    ["half are faster", "device", undefined, (list) => most(list, (p) => p.itl50)],
    ["95 % are faster", "soft", [2, 3], (list) => most(list, (p) => p.itl95)],
  ], seconds);
  copies(s, window);
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
      const answer = await ask("dashboard/events?window=" + $("window").value, { signal: mine.signal });
      if (!answer.ok) throw new Error(answer.status);
      points.clear();
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
$("window").addEventListener("change", () => {
  leave();
  listen();
});
document.addEventListener("recoloured", recolour);
legend($("tier-legend"), [["used by requests or copies", "var(--recomputed)"], ["cached (darker: leased)", "var(--device)"], ["free", "var(--free)"]]);
legend($("paths-legend"), [...TIERS.map((tier) => [tier, `var(--${tier})`]), ["a rung that is gone", "none"], ["▾ where the last request resumed", ""]]);
