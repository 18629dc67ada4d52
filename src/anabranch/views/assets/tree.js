// The tree page: the mask as a picture, the tokens as a list, one token at a time in words.
let tree = null, chosen = 0;
const sees = (query, key) => key <= query && query < tree.ends[key];
const visible = (text) => text.replace(/\n/g, "↵\n").replace(/^ $/, "␣") || "∅";
function matrix() {
  const size = tree.texts.length, canvas = $("matrix");
  canvas.width = canvas.height = size;
  const pen = canvas.getContext("2d"), picture = pen.createImageData(size, size);
  const style = getComputedStyle(document.documentElement);
  const hex = (name) => { const c = style.getPropertyValue(name).trim(); return [1, 3, 5].map((i) => parseInt(c.slice(i, i + 2), 16)); };
  const ink = hex("--text"), mark = hex("--trial");
  for (let q = 0; q < size; q++) for (let k = 0; k <= q; k++) {
    if (!sees(q, k)) continue;
    const at = 4 * (q * size + k), paint = q === chosen || k === chosen ? mark : ink;
    picture.data.set([...paint, 255], at);
  }
  pen.putImageData(picture, 0, 0);
}
function list() {
  const targets = new Set(tree.edges.map((edge) => edge[0]));
  $("tokens").replaceChildren(...tree.texts.map((text, at) => make("span", { role: "option", id: "token-" + at, "aria-selected": "false", class: targets.has(at) ? "target" : null, onclick: () => choose(at) }, visible(text))));
}
function choose(at) {
  chosen = at;
  for (const [other, node] of [...$("tokens").children].entries()) {
    node.classList.toggle("seen", sees(at, other) && other !== at);
    node.classList.toggle("chosen", other === at);
    node.setAttribute("aria-selected", String(other === at));
  }
  $("tokens").setAttribute("aria-activedescendant", "token-" + at);
  $("token-" + at).scrollIntoView({ block: "nearest" });
  const edges = tree.edges.filter((edge) => edge[0] === at);
  const seen = tree.texts.reduce((sum, _, other) => sum + (sees(at, other) ? 1 : 0), 0);
  const rows = [["text", visible(tree.texts[at])], ["id", tree.ids[at]], ["place in the layout", at],
    ["position (depth)", tree.positions[at]], ["subtree ends before", tree.ends[at]], ["sees", seen + " tokens, itself included"],
    ["predicts", edges.length ? edges.map((edge) => `${visible(edge[1])} (weight ${edge[2]})`).join(", ") : "nothing: no target"]];
  const table = make("table");
  for (const [name, value] of rows) table.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, String(value))));
  $("one").replaceChildren(table);
  matrix();
}
(async function start() {
  tree = await unpack("tree");
  themeButton();
  $("theme").addEventListener("click", matrix);
  const cut = tree.size > tree.texts.length ? `; the first ${tree.texts.length} are shown` : "";
  $("facts").textContent = `${tree.name} · ${tree.size} tokens in the tree${cut} · ${tree.raw} as separate sequences (${(tree.raw / tree.size).toFixed(2)} ×) · ${tree.edges.length} targets (underlined)`;
  list();
  $("tokens").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    choose(Math.min(tree.texts.length - 1, Math.max(0, chosen + by)));
  });
  choose(0);
  document.body.dataset.ready = "yes";
})();
