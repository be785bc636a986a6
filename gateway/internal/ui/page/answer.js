// An answer whose tokens are coloured by their origin. The text is that of the API; tokens, which come by another way,
// are laid over it.
import { make } from "./dom.js";
import { showRound } from "./tree.js";

export const origins = {
  draft: "draft", lookup: "prompt lookup", constraint: "constraint (grammar)", plain: "plain: the target alone",
};

export class Answer {
  /** An answer shows its content in one element and its reasoning in another one. */
  constructor(content, reasoning) {
    this.parts = [{ element: reasoning, text: "", drawn: "" }, { element: content, text: "", drawn: "" }];
    this.tokens = []; // by index in the output: {text, origin, round}
    this.due = false;
  }

  /** delta adds text of the API. */
  delta(content, reasoning) {
    this.parts[0].text += reasoning;
    this.parts[1].text += content;
    this.later();
  }

  /** add adds the tokens of an event. */
  add(event) {
    for (const [i, token] of (event.tokens || []).entries()) {
      // The last tokens of an event are those of its own round; those before come from rounds that were left out.
      const own = event.type === "round" && i >= event.tokens.length - event.committed;
      this.tokens[event.index + i] = { text: token.t, origin: token.o, round: own ? event : null };
    }
    this.later();
  }

  /** later draws with the next frame: deltas may come faster. */
  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.draw(); });
  }

  /** draw lays tokens over the text as far as both have come. */
  draw() {
    let all = "";
    const starts = []; // of each token in all
    for (let i = 0; i < this.tokens.length && this.tokens[i]; i++) {
      starts.push(all.length);
      all += this.tokens[i].text;
    }
    let from = 0;
    for (const part of this.parts) {
      if (!part.element) continue;
      const at = find(all, part.text, from);
      this.cover(part, at < 0 ? "" : all, at, starts);
      if (at >= 0) from = at;
      part.element.hidden = part.element.dataset.optional === "yes" && !part.text;
    }
  }

  /** cover writes a part's text as one span a token; what has no token yet is plain text. */
  cover(part, all, at, starts) {
    const state = part.text.length + ":" + (at < 0 ? 0 : all.length) + ":" + at;
    if (part.drawn === state) return;
    part.drawn = state;
    const focused = part.element.contains(document.activeElement) ? document.activeElement.dataset.i : "";
    const list = document.createDocumentFragment();
    let done = 0;
    for (let i = 0; at >= 0 && i < starts.length && done < part.text.length; i++) {
      const end = Math.min((starts[i + 1] ?? all.length) - at, part.text.length);
      if (end <= done) continue;
      list.append(this.span(i, part.text.slice(done, end)));
      done = end;
    }
    list.append(part.text.slice(done));
    part.element.replaceChildren(list);
    if (focused) part.element.querySelector(`[data-i="${focused}"]`)?.focus();
  }

  /** span is one token. */
  span(i, text) {
    const token = this.tokens[i];
    const e = make("span", { class: "origin " + token.origin, "data-i": i, tabindex: i ? -1 : 0 }, text);
    e.title = origins[token.origin] || token.origin;
    const show = () => {
      for (const old of document.querySelectorAll(".origin.shown")) old.classList.remove("shown");
      e.classList.add("shown");
      showRound(token, i);
    };
    e.addEventListener("mouseenter", show);
    e.addEventListener("focus", show);
    e.addEventListener("keydown", (k) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[k.key];
      const next = step && e.parentElement.querySelector(`[data-i="${i + step}"]`);
      if (!next) return;
      k.preventDefault();
      next.focus();
    });
    return e;
  }
}

/** find returns where text begins in all, which may hold its beginning only, or -1. */
function find(all, text, from) {
  if (!text) return -1;
  const whole = all.indexOf(text, from);
  if (whole >= 0) return whole;
  const begin = all.indexOf(text.slice(0, 24), from);
  if (begin >= 0 && text.startsWith(all.slice(begin, begin + text.length))) return begin;
  // The tokens may end within the first characters.
  for (let n = Math.min(23, text.length); n > 0; n--) {
    if (all.length - n >= from && all.endsWith(text.slice(0, n))) return all.length - n;
  }
  return -1;
}
