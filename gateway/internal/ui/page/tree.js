// The tree of a round.
import { at, draw, took, visible } from "./dom.js";
import { origins } from "./answer.js";

const wide = 96, high = 30, box = 22;

/** showRound shows the round in which a token was committed. */
export function showRound(token, index) {
  const round = token.round;
  const name = origins[token.origin] || token.origin;
  if (!round || !round.nodes) {
    at("round").textContent = `Token ${index + 1} ${visible(token.text)}: ${name}. ` +
      (index === 0 ? "It was chosen by the last step of the prompt." : "Its round was not described (at most 30 a second).");
    at("tree").replaceChildren();
    return;
  }
  const waited = round.proposed ? `, proposal after ${took(round.proposed)} (draft ${took(round.draft)})` : "";
  at("round").textContent = `Token ${index + 1} ${visible(token.text)}: ${name}. Round ${round.n}: ` +
    `${round.nodes.length - 1} proposed, ${round.accepted} accepted, ${round.committed} committed` +
    `${waited}, verified in ${took(round.step[1] - round.step[0])}, ${took(round.end)} in all.`;
  at("tree").replaceChildren(tree(round));
}

/** tree draws nodes from left to right by depth; the accepted path is bold. */
function tree(round) {
  const nodes = round.nodes.map((n) => ({ ...n, depth: 0, row: 0, children: [] }));
  const taken = new Set(round.path);
  for (const [i, n] of nodes.entries()) {
    if (i === 0) continue;
    n.depth = nodes[n.p].depth + 1;
    nodes[n.p].children.push(i);
  }
  let rows = 0;
  const place = (i) => {
    const n = nodes[i];
    n.row = rows;
    // The accepted child comes first, so that the path is a straight line.
    n.children.sort((a, b) => taken.has(b) - taken.has(a));
    for (const [k, child] of n.children.entries()) {
      if (k > 0) rows++;
      place(child);
    }
  };
  place(0);
  const depth = Math.max(...nodes.map((n) => n.depth));
  const width = (depth + 1) * wide + 8, height = (rows + 1) * high + 8;
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Tree of ${nodes.length - 1} proposed tokens, accepted: ` +
      (round.path.slice(1).map((i) => visible(nodes[i].t)).join(" ") || "none") });
  const x = (n) => 4 + n.depth * wide, y = (n) => 4 + n.row * high;
  for (const [i, n] of nodes.entries()) {
    if (i === 0) continue;
    const p = nodes[n.p], from = x(p) + wide - 14, to = x(n);
    const kind = taken.has(i) ? "edge taken" : "edge";
    svg.append(draw("path", { class: kind,
      d: `M${from} ${y(p) + box / 2} C${from + 10} ${y(p) + box / 2} ${to - 10} ${y(n) + box / 2} ${to} ${y(n) + box / 2}` }));
  }
  for (const [i, n] of nodes.entries()) {
    const on = taken.has(i) ? " taken" : "";
    const text = visible(n.t), short = text.length > 10 ? text.slice(0, 9) + "…" : text;
    svg.append(draw("g", {},
      draw("title", {}, `${text}: ${n.o === "anchor" ? "newest token of the output" : origins[n.o] || n.o}` +
        (on ? ", accepted" : ", not accepted")),
      draw("rect", { class: n.o + on, x: x(n), y: y(n), width: wide - 14, height: box, rx: 5 }),
      draw("text", { class: on.trim(), x: x(n) + 6, y: y(n) + 15 }, short)));
  }
  return svg;
}
