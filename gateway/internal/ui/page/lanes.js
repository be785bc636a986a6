// Lanes of steps on a time axis, one group of lanes a target: draft, link, verification, output.
const names = ["draft", "link", "verify", "output"];
const rowHeight = 16, groupGap = 22, axis = 18;
const keep = 2000; // events

export class Lanes {
  constructor(canvas, text) {
    this.canvas = canvas;
    this.text = text;
    this.events = [];
    this.span = 1; // seconds
    this.paused = false;
    this.labels = new Map(); // worker to device
    this.offset = new Map(); // worker's clock to ours, ms: the smallest seen
    this.due = false;
    new ResizeObserver(() => this.later()).observe(canvas);
  }

  setSpan(seconds) { this.span = seconds; this.later(); }
  toggle() { this.paused = !this.paused; this.later(); return this.paused; }
  recolour() { this.later(); }

  /** workers notes on which devices targets and drafts run. */
  workers(list) {
    const drafts = list.filter((w) => w.role === "draft").map((w) => w.device || w.backend);
    this.draft = drafts.join(", ");
    for (const w of list) if (w.role === "target") this.labels.set(w.id, w.device || w.backend);
    this.later();
  }

  /** add adds an event. */
  add(event) {
    if (this.paused) return;
    this.events.push(event);
    if (this.events.length > keep) this.events.splice(0, keep / 2);
    this.later();
  }

  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => { this.due = false; this.draw(); });
  }

  draw() {
    const { canvas, events } = this;
    const targets = [...new Set([...this.labels.keys(), ...events.map((e) => e.worker)])];
    const height = axis + Math.max(1, targets.length) * (names.length * rowHeight + groupGap);
    canvas.style.height = height + "px";
    const scale = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue("--" + name);
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    const left = 52, room = width - left - 4;
    const last = events.length ? Math.max(...events.slice(-200).map((e) => e.start + e.end)) : 0;
    const first = last - this.span * 1000;
    const x = (ms) => left + (ms - first) / (this.span * 1000) * room;
    g.fillStyle = g.strokeStyle = colour("quiet");
    for (let i = 0; i <= 4; i++) {
      const at = left + room * i / 4;
      g.fillText((this.span * (i / 4 - 1) * 1000).toFixed(0) + " ms", Math.min(at, width - 44), height - axis / 2);
      g.globalAlpha = .25;
      g.fillRect(at, 0, 1, height - axis);
      g.globalAlpha = 1;
    }
    let shown = 0, skipped = 0, accepted = 0, committed = 0, verify = 0, waiting = 0;
    for (const [t, target] of targets.entries()) {
      const top = t * (names.length * rowHeight + groupGap);
      g.fillStyle = colour("ink");
      const device = this.labels.get(target);
      g.fillText(`${target}${device ? " · " + device : ""}${this.draft ? " · draft on " + this.draft : ""}`, 0, top + 9);
      for (const [r, name] of names.entries()) {
        g.fillStyle = colour("quiet");
        g.fillText(name, 0, top + groupGap + r * rowHeight + 6);
      }
      const bar = (row, from, to, fill) => {
        if (to < first || to <= from) return;
        const a = Math.max(left, x(from));
        g.fillStyle = fill;
        g.fillRect(a, top + groupGap + row * rowHeight, Math.max(1, x(to) - a), rowHeight - 4);
      };
      for (const e of events) {
        if (e.worker !== target || e.start + e.end < first) continue;
        skipped += e.skipped || 0;
        if (e.type === "end") continue;
        const s = e.start;
        if (e.type === "prompt") {
          bar(2, s + e.step[0], s + e.step[1], colour("bar-prompt"));
          continue;
        }
        if (e.proposed > 0) {
          const hop = Math.max(0, e.proposed - e.draft) / 2;
          bar(1, s, s + hop, colour("bar-link"));
          bar(0, s + hop, s + e.proposed - hop, colour("bar-draft"));
          bar(1, s + e.proposed - hop, s + e.proposed, colour("bar-link"));
        }
        bar(2, s + e.step[0], s + e.step[1], colour("bar-verify"));
        bar(3, s + e.step[1], s + e.end, colour("bar-commit"));
        shown++;
        accepted += e.accepted;
        committed += e.committed;
        verify += e.step[1] - e.step[0];
        waiting += e.proposed;
      }
    }
    this.text.textContent = shown
      ? `${shown} rounds${skipped ? ` of ${shown + skipped}, the others are not drawn` : ""}: ` +
        `${(committed / shown).toFixed(2)} tokens a round, ${(accepted / shown).toFixed(2)} accepted, ` +
        `proposal ${(waiting / shown).toFixed(2)} ms, verification ${(verify / shown).toFixed(2)} ms. ` +
        "Prompt steps stand in the lane of verification. Half of the time on the way is drawn on each side of the draft."
      : "No rounds yet.";
  }
}
