// The page itself: its tabs, its colours, the key.

import { $, KeyNeeded, ask, say, useKey } from "./base.js";
import * as chat from "./chat.js";
import * as clients from "./clients.js";
import * as dashboard from "./dashboard.js";

const TABS = ["chat", "clients", "dashboard"];
let model = null, chosen = null;

/* ── tabs: arrow keys go from one to the next, as the pattern of ARIA has it ── */

function here() {
  if (location.pathname.endsWith("/dashboard")) return "dashboard";
  return location.hash === "#clients" ? "clients" : "chat";
}

function choose(name) {
  chosen = name;
  for (const tab of TABS) {
    $("tab-" + tab).setAttribute("aria-selected", String(tab === name));
    $("tab-" + tab).tabIndex = tab === name ? 0 : -1;
    $("panel-" + tab).hidden = tab !== name;
  }
  $("pause").hidden = name !== "dashboard";
  if (name === "dashboard") dashboard.listen();
  else { dashboard.leave(); if (model) say("live", "Ready"); }
  if (name === "clients" && model) clients.show(model);
}

TABS.forEach((name, at) => {
  const tab = $("tab-" + name);
  tab.addEventListener("click", () => {
    history.pushState(null, "", { chat: "./", clients: "./#clients", dashboard: "dashboard" }[name]);
    choose(name);
  });
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = $("tab-" + TABS[(at + step + TABS.length) % TABS.length]);
    next.click();
    next.focus();
  });
});
addEventListener("popstate", () => choose(here()));

/* ── the server ── */

async function connect() {
  try {
    const answer = await ask("v1/models");
    if (!answer.ok) throw new Error(answer.status);
    model = (await answer.json()).data[0];
  } catch (error) {
    if (error instanceof KeyNeeded) return;
    say("lost", "No connection, trying again …");
    setTimeout(connect, 2000);
    return;
  }
  $("ask").hidden = true;
  document.body.classList.remove("locked");
  $("model").textContent = model.id;
  chat.serve(model);
  choose(chosen);
}

document.addEventListener("keyneeded", () => {
  $("ask").hidden = false;
  document.body.classList.add("locked");
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key").value);
  $("key").value = "";
  connect();
});

/* ── colours ── */

function theme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", String(dark));
  document.dispatchEvent(new CustomEvent("recoloured"));
}
$("theme").addEventListener("click", () => theme($("theme").getAttribute("aria-pressed") !== "true"));
theme(matchMedia("(prefers-color-scheme: dark)").matches);

choose(here());
connect();
