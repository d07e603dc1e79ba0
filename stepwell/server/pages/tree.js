// A conversation with branches: each message has the messages that may follow it, one of which is shown.

export function root() { return { parent: null, children: [], shown: 0 }; }

export function add(parent, fields) {
  const node = { parent, children: [], shown: 0, thoughts: "", calls: [], ...fields };
  parent.children.push(node);
  parent.shown = parent.children.length - 1;
  return node;
}

// The messages shown below `from`, in order.
export function path(from) {
  const out = [];
  for (let node = from; node.children.length;) { node = node.children[node.shown]; out.push(node); }
  return out;
}

export function last(from) { return path(from).at(-1) || from; }

function before(node) {
  const out = [];
  for (; node && node.parent; node = node.parent) out.unshift(node);
  return out;
}

// What the API is sent for an answer that follows `node`.
export function messages(node, system) {
  const said = before(node).map((one) => {
    if (one.role === "tool") return { role: "tool", tool_call_id: one.call, content: one.content };
    if (one.role === "user") return { role: "user", content: one.content };
    const message = { role: "assistant", content: one.content };
    if (one.thoughts) message.reasoning_content = one.thoughts;
    if (one.calls.length) {
      message.tool_calls = one.calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    return message;
  });
  return system ? [{ role: "system", content: system }, ...said] : said;
}

// Calls of the answer before `node`, or of `node` itself, that have no result yet.
export function unanswered(node) {
  const done = new Set();
  for (; node && node.role === "tool"; node = node.parent) done.add(node.call);
  return node && node.role === "assistant" ? node.calls.filter((call) => !done.has(call.id)) : [];
}

// Add to `node` what one chunk of a stream brings.
export function take(node, chunk) {
  if (chunk.usage) node.usage = chunk.usage;
  for (const { delta, finish_reason: end } of chunk.choices) {
    node.thoughts += delta.reasoning_content || "";
    node.content += delta.content || "";
    for (const part of delta.tool_calls || []) {
      const call = node.calls[part.index] || (node.calls[part.index] = { id: part.id, name: part.function.name, arguments: "" });
      call.arguments += part.function.arguments || "";
    }
    if (end) node.end = end;
  }
}

export function save(from) {
  return JSON.stringify(from, (name, value) => name === "parent" ? undefined : value);
}

export function load(text) {
  const from = JSON.parse(text), waiting = [from];
  from.parent = null;
  while (waiting.length) {
    const node = waiting.pop();
    for (const child of node.children) { child.parent = node; waiting.push(child); }
  }
  return from;
}
