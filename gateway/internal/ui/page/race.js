// The race: the same prompt without and with speculation.
import { at, took } from "./dom.js";
import { chat, requestID } from "./server.js";
import { summary } from "./chat.js";

/** raceForm makes the form work. */
export function raceForm(state) {
  const form = at("race"), button = form.querySelector("button");
  form.addEventListener("submit", async (e) => {
    e.preventDefault();
    button.disabled = true;
    const verdict = at("verdict");
    verdict.className = "verdict";
    try {
      const prompt = at("race-prompt").value.trim();
      verdict.textContent = "Plain runs…";
      at("spec-text").textContent = at("spec-time").textContent = "";
      const plain = await run(state, prompt, "off", "plain");
      verdict.textContent = "Speculation runs…";
      const spec = await run(state, prompt, "tree", "spec");
      const equal = plain.text === spec.text;
      const faster = plain.decode / spec.decode;
      verdict.textContent = equal
        ? `✓ The texts are equal. Speculation took ${took(spec.decode)} to decode, plain ${took(plain.decode)}: ` +
          `${faster.toFixed(2)} times as fast.`
        : "✗ The texts differ.";
      verdict.classList.add(equal ? "good" : "bad");
    } catch (error) {
      verdict.textContent = "Error: " + error.message;
      verdict.classList.add("bad");
    }
    button.disabled = false;
  });
}

/** run asks once. Both runs read their whole prompt: none takes it from the cache. */
async function run(state, prompt, mode, lane) {
  const element = at(lane + "-text");
  element.textContent = at(lane + "-time").textContent = "";
  let text = "";
  const result = await chat({
    model: state.model, messages: [{ role: "user", content: prompt }], temperature: Number(at("temperature").value),
    seed: 1, max_tokens: Number(at("most").value), speculation: { mode }, cache_prompt: false,
  }, requestID(), (content, reasoning) => {
    text += reasoning + content;
    element.textContent = text;
  });
  at(lane + "-time").textContent = summary(result);
  return { text, decode: result.usage?.timings?.decode_ms || result.totalMS };
}
