// Markdown as elements. Text of a model is never parsed as HTML: every element here is made by name, and all text is text.

import { button, make } from "./base.js";

// every part is bounded, and so is how deep things nest: an answer of any form costs time in proportion to its length
const INLINE = /(`{1,8})([\s\S]{1,2000}?)\1|\*\*([^\s*](?:[\s\S]{0,2000}?\S)?)\*\*|(?<![\w*])\*([^\s*](?:[^*]{0,2000}[^\s*])?)\*(?![\w*])|\[([^\]\n]{1,500})\]\((https?:\/\/[^\s)]+)\)/g;
const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const SEPARATOR = /^[\s|:-]+$/;
const DEEPEST = 12;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

export function inline(text, depth = 0) {
  const out = document.createDocumentFragment();
  let at = 0;
  for (const found of depth < DEEPEST ? text.matchAll(INLINE) : []) {
    out.append(text.slice(at, found.index));
    const [all, , code, strong, soft, label, address] = found;
    if (code !== undefined) out.append(make("code", code.trim()));
    else if (label !== undefined) {
      const link = make("a", label);
      link.href = address;
      link.rel = "noopener noreferrer";
      link.target = "_blank";
      out.append(link);
    } else {
      const node = make(strong !== undefined ? "strong" : "em");
      node.append(inline(strong !== undefined ? strong : soft, depth + 1));
      out.append(node);
    }
    at = found.index + all.length;
  }
  out.append(text.slice(at));
  return out;
}

export function codeBlock(text, language) {
  const box = make("div", undefined, "code"), block = make("pre"), head = make("div", undefined, "code-head");
  block.append(make("code", text));
  block.tabIndex = 0;
  block.setAttribute("role", "region");
  block.setAttribute("aria-label", `code${language ? ", " + language : ""}`);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch { // no clipboard without TLS: the text is marked, Ctrl-C copies it
      getSelection().selectAllChildren(block);
      copy.textContent = "Marked: press Ctrl-C";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  head.append(make("span", language), copy);
  box.append(head, block);
  return box;
}

function list(lines, at, depth = 0) {
  const [, indent, mark] = ITEM.exec(lines[at]), ordered = /\d/.test(mark), node = make(ordered ? "ol" : "ul");
  if (ordered) node.start = parseInt(mark, 10);
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (found && found[1].length > indent.length && node.lastChild && depth < DEEPEST) {
      const [inner, next] = list(lines, at, depth + 1);
      node.lastChild.append(inner);
      at = next;
    } else if (found && found[1].length >= indent.length && /\d/.test(found[2]) === ordered) {
      const item = make("li");
      item.append(inline(found[3]));
      node.append(item);
      at++;
    } else if (!found && lines[at].trim() && /^\s/.test(lines[at]) && node.lastChild) {
      node.lastChild.append(" ", inline(lines[at].trim()));
      at++;
    } else break;
  }
  return [node, at];
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
}

function table(lines, at) {
  const box = make("div", undefined, "scroll"), node = make("table"), row = (line, tag) => {
    const made = make("tr");
    for (const text of cells(line)) { const cell = make(tag); cell.append(inline(text)); made.append(cell); }
    return made;
  };
  box.tabIndex = 0;
  node.append(row(lines[at], "th"));
  for (at += 2; at < lines.length && lines[at].includes("|"); at++) node.append(row(lines[at], "td"));
  box.append(node);
  return [box, at];
}

function separates(line) {
  return SEPARATOR.test(line) && line.includes("-") && line.includes("|");
}

export function render(text, depth = 0) {
  const out = document.createDocumentFragment(), lines = text.split("\n");
  let at = 0, paragraph = [];
  const close = () => {
    if (paragraph.length) { const node = make("p"); node.append(inline(paragraph.join("\n"))); out.append(node); }
    paragraph = [];
  };
  while (at < lines.length) {
    const line = lines[at], fence = FENCE.exec(line), heading = HEADING.exec(line);
    if (fence) {
      close();
      let end = at + 1;
      while (end < lines.length && !lines[end].trim().startsWith(fence[1])) end++;
      out.append(codeBlock(lines.slice(at + 1, end).join("\n"), fence[2]));
      at = end + 1;
    } else if (heading) {
      close();
      const node = make("p", undefined, "heading");
      node.append(inline(heading[2]));
      out.append(node);
      at++;
    } else if (ITEM.test(line)) {
      close();
      const [node, next] = list(lines, at);
      out.append(node);
      at = next;
    } else if (line.includes("|") && separates(lines[at + 1] || "")) {
      close();
      const [node, next] = table(lines, at);
      out.append(node);
      at = next;
    } else if (line.startsWith(">") && depth < DEEPEST) {
      close();
      const node = make("blockquote"), quoted = [];
      while (at < lines.length && lines[at].startsWith(">")) quoted.push(lines[at++].replace(/^> ?/, ""));
      node.append(render(quoted.join("\n"), depth + 1));
      out.append(node);
    } else {
      if (line.trim()) paragraph.push(line); else close();
      at++;
    }
  }
  close();
  return out;
}
