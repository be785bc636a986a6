// Small helpers to build elements. Text is always set as text, never as HTML.

/** at returns the element with an id. */
export const at = (id) => document.getElementById(id);

/** make returns an element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

/** draw is make for SVG. */
export function draw(tag, attributes = {}, ...children) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

/** visible writes spaces and ends of lines so that they can be seen. */
export function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
}

/** took writes milliseconds. */
export function took(ms) {
  if (ms >= 10000) return (ms / 1000).toFixed(1) + " s";
  return (ms >= 100 ? ms.toFixed(0) : ms.toFixed(1)) + " ms";
}
