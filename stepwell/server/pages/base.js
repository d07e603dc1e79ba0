// What all tabs use: elements, numbers as people read them, calls with the key, tiers and their colours.

export const SOURCES = ["device", "host", "disk", "recomputed"];
export const TIERS = ["device", "host", "disk"];
export const NAMES = { device: "device", host: "host", disk: "disk", recomputed: "computed" };

export const $ = (id) => document.getElementById(id);
export const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
export const short = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });
export const share = (part, all) => all ? (100 * part / all).toFixed(1) + " %" : "–";
export const sum = (list) => list.reduce((a, b) => a + b, 0);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? (value * 1000).toFixed(value < 0.01 ? 1 : 0) + " ms" : value.toFixed(value < 10 ? 2 : 0) + " s";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < 4) { value /= 1024; at++; }
  return value.toFixed(at && value < 100 ? 1 : 0) + " " + units[at];
}

export function age(total) {
  if (total < 60) return total.toFixed(total < 10 ? 1 : 0) + " s";
  if (total < 3600) return Math.floor(total / 60) + " min";
  return Math.floor(total / 3600) + " h " + Math.floor(total % 3600 / 60) + " min";
}

export function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

export function button(text, action, className) {
  const node = make("button", text, className);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

export function legend(list, entries) {
  list.replaceChildren(...entries.map(([text, fill]) => {
    const item = make("li"), mark = make("i", undefined, fill === "none" ? "hollow" : "");
    if (fill !== "none") mark.style.background = fill;
    item.append(...(fill ? [mark] : []), text);
    return item;
  }));
}

// A bar of tokens by where they came from, which says the same to a screen reader.
export function sourceBar(tokens) {
  const all = sum(SOURCES.map((name) => tokens[name])), bar = make("div", undefined, "bar");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", SOURCES.map((name) => `${NAMES[name]} ${whole.format(tokens[name])}`).join(", "));
  for (const name of SOURCES) {
    const part = make("span");
    part.style.width = (all ? 100 * tokens[name] / all : 0) + "%";
    part.style.background = `var(--${name})`;
    bar.append(part);
  }
  return bar;
}

export function say(state, text) {
  const node = $("state");
  if (node.textContent === text) return;
  node.dataset.state = state;
  node.textContent = text;
}

// The key stays in this page's memory: a reload asks for it again.
let key = "";
export const hasKey = () => key !== "";
export function useKey(given) { key = given; }

export class KeyNeeded extends Error {}

// The answer to a call of this server. Throws KeyNeeded where it wants another key.
export async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}), ...(key ? { authorization: "Bearer " + key } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status !== 401) return answer;
  say("lost", key ? "This key does not fit" : "A key is needed");
  document.dispatchEvent(new CustomEvent("keyneeded"));
  throw new KeyNeeded();
}

// The data of server-sent events, one after another.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
