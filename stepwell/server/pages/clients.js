// The tab with configurations to copy: clients.json is made from docs/clients.md.

import { $, ask, hasKey, make } from "./base.js";
import { codeBlock, inline } from "./markdown.js";

let programs = null;

export async function show(model) {
  programs ??= await (await ask("page/clients.json")).json();
  const values = {
    url: location.origin,
    model: model ? model.id : "MODEL",
    context: String(model ? model.max_model_len : 262144),
    key: hasKey() ? "YOUR_KEY" : "none",
  };
  const filled = (text) => text.replace(/\{\{(url|model|context|key)\}\}/g, (all, name) => values[name]);
  $("programs").replaceChildren(...programs.map(({ name, parts }, at) => {
    const box = make("details", undefined, "program");
    box.open = at === 0;
    box.append(make("summary", name));
    for (const { text, code, language } of parts) {
      if (code !== undefined) box.append(codeBlock(filled(code), language));
      else { const line = make("p"); line.append(inline(filled(text))); box.append(line); }
    }
    return box;
  }));
}
