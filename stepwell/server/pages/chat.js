// The tab that talks to the model: answers as they are written, and beside each where its prompt came from.

import { $, NAMES, SOURCES, KeyNeeded, ask, button, events, legend, make, seconds, share, sourceBar, whole } from "./base.js";
import { codeBlock, render } from "./markdown.js";
import * as tree from "./tree.js";

const KEPT = "stepwell.conversation";
const SESSION = "page-" + crypto.getRandomValues(new Uint32Array(2)).join("-");
let talk = remembered(), model = null, running = null;

function remembered() {
  try { return tree.load(sessionStorage.getItem(KEPT)); } catch { return tree.root(); }
}

function remember() {
  try { sessionStorage.setItem(KEPT, tree.save(talk)); } catch { /* it outlives no reload, then */ }
}

export function serve(served) {
  model = served;
  draw();
}

/* ── what is shown ── */

function draw() {
  const shown = tree.path(talk);
  $("talk").replaceChildren(...(shown.length ? shown.map(view) : [welcome()]));
  meter();
  const calls = tree.unanswered(tree.last(talk));
  $("say").placeholder = calls.length ? `Result of ${calls[0].name}` : "Ask something";
  $("say-label").textContent = $("say").placeholder;
}

function welcome() {
  const box = make("div", undefined, "welcome");
  box.append(make("p", "Ask something twice, or go on with a conversation: beside each answer stands how much of its prompt came from the cache, and what that saved."));
  return box;
}

function view(node) {
  const box = make("article", undefined, "message " + node.role), text = make("div", undefined, "text");
  box.setAttribute("aria-label", { user: "You", assistant: "Answer", tool: "Result of a tool" }[node.role]);
  box.append(text);
  node.view = () => fill(node, text, box);
  node.view();
  return box;
}

function fill(node, text, box) {
  if (node.role === "assistant") {
    const open = text.querySelector("details.thoughts")?.open;
    text.replaceChildren(...answerParts(node, open));
    box.querySelector("aside")?.remove();
    if (node.usage || node.error || node.stopped) box.append(beside(node));
  } else text.replaceChildren(node.role === "tool" ? codeBlock(node.content, "result") : make("div", node.content, "said"));
  box.querySelector(".actions")?.remove();
  if (node !== running?.node) text.append(actions(node));
}

function answerParts(node, open) {
  const parts = [];
  if (node.thoughts) {
    const box = make("details", undefined, "thoughts"), count = node.usage?.completion_tokens_details?.reasoning_tokens;
    box.open = Boolean(open);
    box.append(make("summary", count ? `Thoughts (${whole.format(count)} tokens)` : "Thoughts"), render(node.thoughts));
    parts.push(box);
  }
  const said = make("div", undefined, "said");
  said.append(render(node.content));
  parts.push(said);
  for (const call of node.calls) {
    const box = make("div", undefined, "call");
    box.append(make("p", `Calls the tool ${call.name}`), codeBlock(tidy(call.arguments), "json"));
    parts.push(box);
  }
  if (node === running?.node && !node.content && !node.calls.length) parts.push(make("p", node.thoughts ? "Thinking …" : "Reading the prompt …", "note"));
  return parts;
}

function tidy(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function actions(node) {
  const row = make("div", undefined, "actions");
  if (node.role === "assistant") row.append(button("Regenerate", () => answer(node.parent)));
  else row.append(button("Edit", () => edit(node)));
  const twins = node.parent.children;
  if (twins.length > 1) {
    const at = twins.indexOf(node), go = (to) => () => { node.parent.shown = to; remember(); draw(); };
    const back = button("‹", go(at - 1)), on = button("›", go(at + 1));
    back.setAttribute("aria-label", "Branch before");
    on.setAttribute("aria-label", "Next branch");
    back.disabled = at === 0;
    on.disabled = at === twins.length - 1;
    row.append(back, make("span", `branch ${at + 1} of ${twins.length}`), on);
  }
  for (const one of row.querySelectorAll("button")) one.disabled ||= Boolean(running);
  return row;
}

/* Where the prompt came from: the numbers are the server's own, in the answer's usage. */
function beside(node) {
  const box = make("aside");
  box.setAttribute("aria-label", "Where the prompt came from");
  if (node.usage) {
    const told = node.usage.prompt_tokens_details, prompt = node.usage.prompt_tokens;
    const tokens = { device: told.device_tokens, host: told.host_tokens, disk: told.disk_tokens, recomputed: prompt - told.cached_tokens };
    const list = make("ul", undefined, "legend");
    legend(list, SOURCES.filter((name) => tokens[name]).map((name) => [`${NAMES[name]} ${whole.format(tokens[name])}`, `var(--${name})`]));
    box.append(make("p", `${share(told.cached_tokens, prompt)} of ${whole.format(prompt)} prompt tokens came from the cache`, "strong"), sourceBar(tokens), list);
    box.append(make("p", told.saved_ms ? `It saved about ${seconds(told.saved_ms / 1000)} of prefill` : "It saved nothing this time"));
    const rest = node.seconds - node.first, count = node.usage.completion_tokens;
    const speed = count > 1 && rest > 0 ? ` at ${((count - 1) / rest).toFixed(1)}/s` : "";
    box.append(make("p", `First token after ${seconds(node.first)}; ${whole.format(count)} ${count === 1 ? "token" : "tokens"}${speed}`));
  }
  if (node.stopped) box.append(make("p", "Stopped"));
  if (node.end === "length") box.append(make("p", "Cut off: the answer had no more room"));
  if (node.error) {
    const fault = make("p", node.error, "bad");
    fault.setAttribute("role", "alert");
    box.append(fault);
  }
  return box;
}

function meter() {
  const used = tree.path(talk).findLast((node) => node.usage)?.usage.total_tokens || 0, most = model?.max_model_len;
  $("meter").textContent = most ? `${whole.format(used)} of ${whole.format(most)} tokens of context used` : "";
}

/* ── what is done ── */

function edit(node) {
  const area = make("textarea"), box = make("form", undefined, "edit"), save = make("button", "Send as a branch");
  area.value = node.content;
  area.setAttribute("aria-label", "Message");
  box.append(area, save, button("Cancel", draw));
  box.addEventListener("submit", (event) => {
    event.preventDefault();
    answer(tree.add(node.parent, { role: node.role, content: area.value, call: node.call }));
  });
  $("talk").children[tree.path(talk).indexOf(node)].replaceChildren(box);
  area.focus();
}

function send() {
  const text = $("say").value;
  if (running || !model || !text.trim()) return;
  $("say").value = "";
  const from = tree.last(talk), calls = tree.unanswered(from);
  const node = calls.length ? { role: "tool", content: text, call: calls[0].id } : { role: "user", content: text };
  const added = tree.add(from, node);
  if (calls.length > 1) { remember(); draw(); } else answer(added);
}

function fields(from) {
  const body = { model: model.id, messages: tree.messages(from, $("system").value), stream: true, stream_options: { include_usage: true }, session_id: SESSION };
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("max-tokens").value) body.max_tokens = Number($("max-tokens").value);
  if ($("thinking").value) body.chat_template_kwargs = { enable_thinking: $("thinking").value === "on" };
  if ($("tools").value.trim()) body.tools = JSON.parse($("tools").value);
  return body;
}

/* Have the model answer what stands at `from`; several answers to one message are branches. */
async function answer(from) {
  const node = tree.add(from, { role: "assistant", content: "" }), stop = new AbortController();
  running = { node, stop };
  busy(true);
  draw();
  follow();
  const began = performance.now(), since = () => (performance.now() - began) / 1000;
  try {
    await stream(node, fields(from), stop.signal, since);
    $("told").textContent = "The answer is complete";
  } catch (error) {
    if (error instanceof KeyNeeded) node.error = "The server asks for a key: give it above, then send again";
    else if (stop.signal.aborted) node.stopped = true;
    else node.error = error instanceof SyntaxError ? "The tools are not JSON: " + error.message : String(error.message || error);
    $("told").textContent = node.stopped ? "Stopped" : "The answer has failed";
  }
  node.seconds = since();
  running = null;
  busy(false);
  remember();
  draw();
  follow();
}

async function stream(node, body, signal, since) {
  const reply = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  for await (const data of events(reply)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    tree.take(node, chunk);
    if (node.first === undefined && (node.thoughts || node.content || node.calls.length)) node.first = since();
    node.first ??= chunk.usage ? since() : undefined;
    refresh(node);
  }
  throw new Error("the connection was lost before the answer was complete");
}

/* Draw at most once a frame, and less often as an answer grows long. */
let due = false;
function refresh(node) {
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    if (running?.node !== node) return;
    node.view();
    follow();
  }, 16 + node.content.length / 200);
}

/* Keep the end in sight, unless the reader has scrolled away from it. */
function follow() {
  const page = document.scrollingElement;
  if (page.scrollHeight - page.scrollTop - innerHeight < 200) scrollTo({ top: page.scrollHeight });
}

function busy(now) {
  $("stop").disabled = !now;
  $("send").disabled = now;
  $("new").disabled = now;
  if (now) $("told").textContent = "The model is answering";
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("say").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("stop").addEventListener("click", () => running?.stop.abort());
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.stop.abort(); });
$("new").addEventListener("click", () => {
  talk = tree.root();
  remember();
  draw();
  $("say").focus();
});
draw();
