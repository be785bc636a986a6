// Workers and requests.
import { at, make, took } from "./dom.js";

const phaseColours = { compress: "bar-prompt", queue: "bar-link", prefill: "bar-commit", decode: "bar-verify" };

/** facts is a definition list of what is known. */
function facts(list) {
  const dl = make("dl");
  for (const [name, value] of list) {
    if (value !== undefined && value !== "" && value !== null) dl.append(make("dt", {}, name), make("dd", {}, String(value)));
  }
  return dl;
}

const cards = new Map(); // of the workers shown, by id

/**
 * showCluster shows the workers. A card and its buttons stay while their worker does: a button that is replaced between
 * the press and its end is never clicked, and loses the focus.
 */
export function showCluster(event, killable, act) {
  at("queue").textContent = `${event.workers.length} workers, ${event.queue} requests wait.`;
  const shown = event.workers.map((w) => {
    if (!cards.has(w.id)) cards.set(w.id, card(w.id, killable, act));
    const e = cards.get(w.id);
    Object.assign(e.dataset, { state: w.state, epoch: w.epoch });
    e.firstElementChild.replaceChildren(...describe(w));
    const out = w.state === "draining", b = e.querySelector("[data-drain]");
    const text = out ? "Take back" : "Drain";
    if (b.textContent !== text) b.textContent = text;
    b.setAttribute("aria-label", `${text}: ${w.id}`);
    b.dataset.undo = out;
    b.disabled = w.state === "lost";
    return e;
  });
  for (const [id, e] of cards) {
    if (!shown.includes(e)) cards.delete(id);
  }
  const list = at("workers");
  if (shown.length !== list.children.length || shown.some((e, i) => e !== list.children[i])) list.replaceChildren(...shown);
}

/** card is a worker's: what describes it, and its buttons. */
function card(id, killable, act) {
  const row = make("div", { class: "row" });
  const drain = make("button", { type: "button", "data-drain": id });
  drain.addEventListener("click", () => act.drain(id, drain.dataset.undo === "true"));
  row.append(drain);
  if (killable) {
    for (const part of ["engine", "worker"]) {
      const b = make("button", { type: "button", "data-kill": part + " " + id, "aria-label": `Kill ${part} of ${id}` },
        "Kill " + part);
      b.addEventListener("click", () => act.kill(id, part));
      row.append(b);
    }
  }
  return make("div", { class: "card", "data-worker": id }, make("div"), row);
}

/** memory says what of a device's memory is in use. */
function memory(counters) {
  const used = counters.device_memory_bytes, limit = counters.device_memory_limit_bytes;
  if (!used) return "";
  const mib = (bytes) => (bytes / 2 ** 20).toFixed(0);
  return limit ? `${mib(used)} of ${mib(limit)} MiB` : mib(used) + " MiB";
}

/** layers says how many the model has or, of several engines, which device has which of them and how rows get there. */
function layers(stages) {
  if (stages.length === 1) return stages[0].layer_last - stages[0].layer_first;
  const part = (s) => `${s.layer_first}–${s.layer_last - 1} on ${s.device}${s.rows ? ` (rows: ${s.rows})` : ""}`;
  return stages.map(part).join(" → ");
}

/** link says what the ways to the draft and to the gateway take. */
function link(w) {
  const hop = w.speculation?.hop_ms;
  return [hop ? `draft ${took(hop)}` : "", w.rtt_ms ? `gateway ${took(w.rtt_ms)}` : ""].filter(Boolean).join(", ");
}

/** describe makes what a card says of its worker. */
function describe(w) {
  const counters = w.counters || {};
  const good = w.state === "ready";
  const loading = w.load_bytes ? `${Math.round(100 * w.loaded_bytes / w.load_bytes)} % loaded` : "";
  const drafted = counters.drafted_tokens;
  return [
    make("h3", {}, w.id),
    make("span", { class: "chip " + (good ? "good" : "bad") }, (good ? "✓ " : w.state === "lost" ? "✗ " : "… ") + w.state),
    facts([["role", w.role], ["device", w.device || w.backend], ["model", w.model], ["loading", loading],
      ["slots", w.role === "target" ? `${w.lanes_busy} of ${w.lanes} busy` : ""],
      ["context", w.max_ctx || ""],
      ["memory", memory(counters)], ["layers", layers(w.stages || [])], ["way to", link(w)],
      ["draining", w.state !== "draining" ? "" : w.empty ? "empty" : w.lanes_busy + " requests left"],
      ["drafts", (w.attached || []).length ? w.attached.length + " attached" : ""],
      ["accepted", drafted ? Math.round(100 * counters.accepted_tokens / drafted) + " % of drafted tokens" : ""],
      ["states", counters.prefix_cache_entries],
      ["joined", w.epoch > 1 ? w.epoch + " times" : ""], ["engine restarts", w.engine_restarts || ""],
      ["refused", (w.refused_drafts || []).map((r) => r.draft + ": " + r.reason).join("; ")],
      ["heartbeat", took(w.last_heartbeat_ms) + " ago"]])];
}

/** showRequests shows those at work and those that ended last, newest first. */
export function showRequests(list) {
  const style = getComputedStyle(document.documentElement);
  const rows = list.toReversed().slice(0, 12).map((r) => {
    const bar = make("div", { class: "phases", "aria-hidden": "true" });
    const all = Object.values(r.phases_ms).reduce((a, b) => a + b, 0) || 1;
    const words = [];
    for (const [name, ms] of Object.entries(r.phases_ms)) {
      if (!phaseColours[name]) continue;
      const part = make("i");
      part.style.width = 100 * ms / all + "%";
      part.style.background = style.getPropertyValue("--" + phaseColours[name]);
      bar.append(part);
      words.push(`${name} ${took(ms)}`);
    }
    if (r.restore_ms) words.push(`restore ${took(r.restore_ms)}`);
    const name = r.id || `another client's, ${r.ref}`;
    return make("tr", {}, make("td", {}, name), make("td", {}, r.outcome ? `${r.phase}: ${r.outcome}` : r.phase),
      make("td", {}, words.join(", "), bar), make("td", {}, String(r.tokens)));
  });
  at("requests").tBodies[0].replaceChildren(...rows);
}
