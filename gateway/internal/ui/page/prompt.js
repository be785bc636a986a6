// Compression of a prompt: what was kept and what was dropped.
import { at, make, took } from "./dom.js";
import { chat, requestID } from "./server.js";

/** promptForm makes the form work. */
export function promptForm(state) {
  const form = at("compress"), button = form.querySelector("button");
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    button.disabled = true;
    const report = at("kept-report"), document = at("document").value.trim().normalize("NFC");
    report.textContent = "It runs…";
    at("kept").replaceChildren();
    at("kept-answer").textContent = "";
    try {
      let text = "";
      const result = await chat({
        model: state.model, max_tokens: Number(at("most").value), temperature: 0,
        messages: [{ role: "user", content: document }, { role: "assistant", content: "I have read it." },
          { role: "user", content: at("question").value }],
        pflash: { mode: "always", keep_ratio: Number(at("keep").value), spans: true },
      }, requestID(), (content) => { text += content; at("kept-answer").textContent = text; });
      const p = result.usage?.pflash;
      if (!p?.applied) {
        report.textContent = "The prompt was not compressed: " + (p?.reason || "compression is off") + ".";
      } else {
        report.textContent = `${p.kept_tokens} of ${p.original_tokens} tokens were kept, scored in ${took(p.score_ms)}.`;
        show(document, p.kept_spans?.find((m) => m.message === 0)?.spans || []);
      }
    } catch (error) {
      report.textContent = "Error: " + error.message;
    }
    button.disabled = false;
  });
}

/** show marks the kept parts of a message. Spans count bytes of its UTF-8. */
function show(text, spans) {
  const bytes = new TextEncoder().encode(text), decoder = new TextDecoder();
  const list = [];
  let done = 0;
  const part = (tag, from, to) => { if (to > from) list.push(make(tag, {}, decoder.decode(bytes.subarray(from, to)))); };
  for (const [from, to] of spans) {
    part("del", done, from);
    part("mark", from, to);
    done = to;
  }
  part("del", done, bytes.length);
  at("kept").replaceChildren(...list);
}
