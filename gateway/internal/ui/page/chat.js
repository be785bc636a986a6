// The chat.
import { at, make, took } from "./dom.js";
import { Answer, origins } from "./answer.js";
import { chat, requestID } from "./server.js";

/** legend names the colours. */
export function legend(element) {
  for (const [name, text] of Object.entries(origins)) {
    element.append(make("span", { class: "origin " + name }, text));
  }
}

/** summary says in a line what a request took. */
export function summary(result) {
  const t = result.usage?.timings;
  const parts = [`first text ${took(result.firstMS)}`, `all ${took(result.totalMS)}`];
  if (result.usage) parts.push(`${result.usage.completion_tokens} tokens`);
  if (t) {
    parts.push(`${t.decode_tokens_per_sec} tokens/s`, `${t.verify_steps} rounds`,
      `${t.accepted_tokens} of ${t.drafted_tokens} drafted accepted`);
  }
  return parts.join(" · ");
}

export class Chat {
  constructor(state) {
    this.state = state;
    this.answers = new Map(); // by request id
    this.messages = [];
    this.stop = null; // of the answer on its way
    at("ask").addEventListener("submit", (e) => { e.preventDefault(); this.stop ? this.stop.abort() : this.send(); });
    at("message").addEventListener("keydown", (e) => {
      if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!this.stop) this.send(); }
    });
    at("new").addEventListener("click", () => {
      this.stop?.abort();
      this.messages = [];
      this.answers.clear();
      at("log").replaceChildren();
      at("message").focus();
    });
  }

  /** add hands an event to the answer that it belongs to. */
  add(event) { this.answers.get(event.id)?.add(event); }

  /** turn adds a turn to the log and returns its parts. */
  turn(who) {
    const thought = make("div", { class: "text thought", "data-optional": "yes", hidden: "" });
    const text = make("div", { class: "text" });
    const note = make("p", { class: "quiet" });
    at("log").append(make("div", { class: "turn" }, make("b", {}, who), thought, text, note));
    return { thought, text, note };
  }

  async send() {
    const message = at("message").value.trim();
    if (!message) return;
    at("message").value = "";
    this.turn("You").text.textContent = message;
    this.messages.push({ role: "user", content: message });
    const { thought, text, note } = this.turn("Tandem");
    const answer = new Answer(text, thought), id = requestID(), log = at("log");
    this.answers.set(id, answer);
    this.stop = new AbortController();
    at("send").textContent = "Stop";
    let said = "";
    try {
      const result = await chat({
        model: this.state.model, messages: this.messages, temperature: Number(at("temperature").value),
        max_tokens: Number(at("most").value), speculation: { mode: at("mode").value },
      }, id, (content, reasoning) => {
        said += content;
        const end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        answer.delta(content, reasoning);
        if (end) requestAnimationFrame(() => { log.scrollTop = log.scrollHeight; });
      }, this.stop.signal);
      note.textContent = summary(result);
    } catch (error) {
      note.textContent = error.name === "AbortError" ? "Stopped." : "Error: " + error.message;
    }
    this.messages.push({ role: "assistant", content: said });
    this.stop = null;
    at("send").textContent = "Send";
    log.scrollTop = log.scrollHeight;
  }
}
