// The live page: connects its parts.
import { ask, onKeyNeeded, stream } from "./server.js";
import { Chat, legend } from "./chat.js";
import { Lanes } from "./lanes.js";
import { showCluster, showRequests } from "./cluster.js";
import { raceForm } from "./race.js";
import { promptForm } from "./prompt.js";
import { at } from "./dom.js";

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** theme sets light or dark: the viewer's choice, else the system's. */
function theme() {
  root.dataset.theme = localStorage.getItem("theme") || (dark.matches ? "dark" : "light");
  lanes.recolour();
}

const lanes = new Lanes(at("lanes"), at("lanes-text"));
const state = { model: "", kill: false };
const chat = new Chat(state);

at("theme").addEventListener("click", () => {
  localStorage.setItem("theme", root.dataset.theme === "dark" ? "light" : "dark");
  theme();
});
dark.addEventListener("change", theme);
theme();

const tabs = [...document.querySelectorAll("[role=tab]")];
/** choose shows the view of a tab. */
function choose(tab) {
  for (const t of tabs) {
    const on = t === tab;
    t.setAttribute("aria-selected", on);
    t.tabIndex = on ? 0 : -1;
    at(t.getAttribute("aria-controls")).hidden = !on;
  }
}
for (const [i, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    const next = tabs[(i + step + tabs.length) % tabs.length];
    choose(next);
    next.focus();
  });
}

at("span").addEventListener("change", (e) => lanes.setSpan(Number(e.target.value)));
at("pause").addEventListener("click", (e) => {
  const paused = lanes.toggle();
  e.target.setAttribute("aria-pressed", paused);
  e.target.textContent = paused ? "Go on" : "Pause";
});

legend(at("legend"));
raceForm(state);
promptForm(state);

onKeyNeeded(() => new Promise((resolve) => {
  const dialog = at("key");
  dialog.addEventListener("close", () => {
    const key = at("key-value").value.trim();
    at("key-value").value = "";
    resolve(key);
  }, { once: true });
  if (!dialog.open) dialog.showModal();
}));

/** linked shows whether events come. */
function linked(text, kind) {
  const chip = at("link");
  if (chip.textContent !== text) chip.textContent = text;
  chip.className = "chip " + kind;
}

/** kill asks for the end of a worker or its engine. */
async function kill(worker, part) {
  const answer = await ask("ui/kill", { worker, part });
  if (!answer.ok) linked((await answer.text()).slice(0, 200), "bad");
}

/** drain has a worker take no new work, or takes that back. */
async function drain(worker, undo) {
  const answer = await ask("cluster/drain", { worker, undo });
  if (!answer.ok) linked((await answer.text()).slice(0, 200), "bad");
}

/** take hands an event to the parts that show it. */
function take(event) {
  switch (event.type) {
    case "hello":
      state.model = event.model;
      state.kill = event.kill;
      at("model").textContent = [event.model, event.version].filter(Boolean).join(" · ");
      linked("live", "good");
      break;
    case "cluster":
      showCluster(event, state.kill, { kill, drain });
      lanes.workers(event.workers);
      break;
    case "requests":
      showRequests(event.requests);
      break;
    default:
      lanes.add(event);
      chat.add(event);
  }
}

/** follow reads events for as long as the page is open, and comes back after every loss. */
async function follow() {
  for (;;) {
    try {
      const answer = await ask("ui/events");
      if (!answer.ok) throw new Error("status " + answer.status);
      await stream(answer, take);
      linked("lost, connecting again", "bad");
    } catch (error) {
      linked("no connection: " + error.message, "bad");
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
follow();
