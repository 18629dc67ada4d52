"use strict";
// What both pages need: unpacking of the data, and elements made without any markup in strings.
async function unpack(id) {
  const packed = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "text", "rect", "title", "line"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) node.append(child);
  return node;
}
const $ = (id) => document.getElementById(id);
function themeButton() {
  const button = $("theme");
  const show = () => {
    const set = document.documentElement.dataset.theme || "as the system";
    button.textContent = "Theme: " + set;
  };
  button.addEventListener("click", () => {
    const order = [undefined, "dark", "light"];
    const next = order[(order.indexOf(document.documentElement.dataset.theme) + 1) % 3];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    show();
  });
  show();
}
