// Calls to the gateway. The key is kept for this tab only.

let needKey = async () => "";
let asking = null; // one dialog for all calls that wait for a key

/** onKeyNeeded sets who is asked for a key. */
export function onKeyNeeded(f) { needKey = f; }

/** ask calls a path, with a body as POST, and asks for a key when the gateway wants one. */
export async function ask(path, body, headers = {}, signal = undefined) {
  for (;;) {
    const key = sessionStorage.getItem("key");
    const answer = await fetch(path, {
      method: body ? "POST" : "GET", cache: "no-store", signal,
      headers: { ...(body && { "Content-Type": "application/json" }), ...(key && { Authorization: "Bearer " + key }),
        ...headers },
      body: body && JSON.stringify(body),
    });
    if (answer.status !== 401) return answer;
    asking ||= needKey().finally(() => { asking = null; });
    const next = await asking;
    if (next) sessionStorage.setItem("key", next);
  }
}

/** stream hands the data of every event of an answer to take, until it ends or take returns false. */
export async function stream(answer, take) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6) : "";
      if (data && data !== "[DONE]" && take(JSON.parse(data)) === false) {
        await reader.cancel();
        return;
      }
    }
  }
}

let next = 0;
const page = crypto.getRandomValues(new Uint32Array(1)).reduce((text, n) => text + n.toString(16), "page-");

/** requestID returns an id of its own for a request. */
export function requestID() { return page + "-" + (++next); }

/**
 * chat streams a chat completion. delta gets (content, reasoning); it returns the usage, the finish reason and the time
 * of each part.
 */
export async function chat(body, id, delta, signal) {
  const began = performance.now();
  const answer = await ask("v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } },
    { "X-Request-Id": id }, signal);
  if (!answer.ok) {
    const text = await answer.text();
    let message = text;
    try { message = JSON.parse(text).error.message; } catch { /* not JSON: shown as it is */ }
    throw new Error(message);
  }
  const result = { usage: null, finish: "", firstMS: 0, totalMS: 0 };
  await stream(answer, (event) => {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) result.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) result.finish = choice.finish_reason;
    const content = choice.delta?.content || "", reasoning = choice.delta?.reasoning_content || "";
    if (content || reasoning) {
      result.firstMS ||= performance.now() - began;
      delta(content, reasoning);
    }
  });
  result.totalMS = performance.now() - began;
  return result;
}
