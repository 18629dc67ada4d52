// The trajectory page: a list that draws only the rows in sight, a river in SVG, and its texts.
const ROW = 74, LEVEL = 46, GAP = 34, TICK = 4;
const COLOURS = ["subtask", "outline", "trial", "path"];
const state = { index: [], shown: [], at: -1, page: null, lanes: [], lane: 0, unit: "tokens", shade: false, zoom: 1 };

// The list ------------------------------------------------------------------------------------
function fillFilters() {
  const outcomes = [...new Set(state.index.flatMap((row) => [row[1], row[2]]))].filter(Boolean).sort();
  $("outcome").append(make("option", { value: "" }, "any"));
  for (const name of outcomes) $("outcome").append(make("option", { value: name }, name));
}
function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const outcome = $("outcome").value, shape = $("shape").value, sort = $("sort").value;
  state.shown = state.index.map((row, number) => [row, number]).filter(([row]) => {
    const [id, ended, verdict, blocks, , , codes, problem, answer] = row;
    if (outcome && ended !== outcome && verdict !== outcome) return false;
    if (shape === "parallel" && !blocks) return false;
    if (shape === "sequential" && blocks) return false;
    if (shape === "findings" && !codes.length) return false;
    const all = [id, problem, answer, codes.join(" ")].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  }).map(([, number]) => number);
  const column = { path: 5, total: 4, blocks: 3 }[sort];
  if (column) state.shown.sort((a, b) => state.index[b][column] - state.index[a][column]);
  $("count").textContent = `${state.shown.length} of ${state.index.length}`;
  $("space").style.height = state.shown.length * ROW + "px";
  $("list").scrollTop = 0;
  drawList();
}
function drawList() {
  const list = $("list"), space = $("space");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 3);
  const last = Math.min(state.shown.length, first + Math.ceil(list.clientHeight / ROW) + 7);
  space.replaceChildren();
  for (let place = first; place < last; place++) {
    const number = state.shown[place], row = state.index[number];
    const figures = `${row[2] || row[1]} · path ${row[5]} of ${row[4]} · ${row[3]} block${row[3] === 1 ? "" : "s"}`;
    const node = make("div", { class: "row", role: "option", id: "row-" + number,
      "aria-selected": String(number === state.at), "aria-setsize": state.shown.length,
      "aria-posinset": place + 1, onclick: () => open(number) },
    make("b", {}, row[0] || "(no id)"), make("span", {}, row[7]), make("span", {}, figures));
    node.style.top = place * ROW + "px";
    space.append(node);
  }
  if ($("row-" + state.at)) list.setAttribute("aria-activedescendant", "row-" + state.at);
  else list.removeAttribute("aria-activedescendant");
}
function step(by) {
  if (!state.shown.length) return;
  const now = state.shown.indexOf(state.at);
  const next = Math.min(state.shown.length - 1, Math.max(0, now < 0 ? 0 : now + by));
  const list = $("list");
  if (next * ROW < list.scrollTop) list.scrollTop = next * ROW;
  if ((next + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (next + 1) * ROW - list.clientHeight;
  open(state.shown[next]);
}

// One trajectory ------------------------------------------------------------------------------
async function open(number) {
  state.at = number;
  history.replaceState(null, "", "#" + number);
  drawList();
  const page = await unpack("page-" + number);
  if (state.at !== number) return;
  state.page = page;
  state.lanes = [];
  collect(page.river);
  state.lane = 0;
  state.zoom = 1;
  const timed = state.lanes.some((lane) => lane.items.some((item) => item.seconds > 0));
  $("by-time").disabled = !timed;
  $("by-time").title = timed ? "" : "no times were recorded";
  if (!timed) state.unit = "tokens";
  const spelt = state.lanes.some((lane) => lane.items.some((item) => item.mean != null));
  $("shade").disabled = !spelt;
  $("shade").title = spelt ? "" : "no log-probs were recorded";
  $("name").textContent = page.id || "(no id)";
  $("problem").textContent = page.problem || page.prompt;
  side(page);
  draw();
}
function collect(lane) {
  lane.at = state.lanes.length;
  state.lanes.push(lane);
  for (const item of lane.items) if (item.lanes) item.lanes.forEach(collect);
}
function side(page) {
  const table = make("table");
  for (const [name, value] of Object.entries(page.facts))
    table.append(make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
  const list = make("ul");
  for (const [code, message] of page.findings)
    list.append(make("li", {}, make("b", {}, code), message ? ": " + message : ""));
  $("side").replaceChildren(make("h3", {}, "Figures"), table, make("h3", {}, "Findings"),
    page.findings.length ? list : make("p", { class: "soft" }, "none"));
}

// The river -----------------------------------------------------------------------------------
const isFork = (item) => Boolean(item.lanes);
const extent = (piece) => state.unit === "tokens" ? piece.size : (piece.wait || 0) + (piece.seconds || 0);
function levels(lane) {
  return Math.max(1, ...lane.items.filter(isFork).map((fork) => fork.lanes.reduce((sum, one) => sum + levels(one), 0)));
}
function width(piece, scale) {
  if (piece.kind === "forced") return TICK;
  return Math.max(extent(piece) * scale, piece.size ? 3 : 0);
}
function measure(lane, scale) {
  let x = 0;
  for (const item of lane.items)
    x += isFork(item) ? 2 * GAP + Math.max(24, ...item.lanes.map((one) => measure(one, scale))) : width(item, scale);
  return x;
}
function fit(lane, room) {
  let low = 0, high = 1e6;
  for (let round = 0; round < 60; round++) {
    const middle = (low + high) / 2;
    if (measure(lane, middle) > room) high = middle; else low = middle;
  }
  return low;
}
function colour(lane, piece) {
  if (piece && piece.kind === "forced") return "var(--forced)";
  if (piece && piece.kind === "plan") return "var(--plan)";
  if (piece && piece.kind === "merge") return "var(--merge)";
  if (["cancelled", "failed", "skipped"].includes(lane.outcome) && lane.number) return "var(--lost)";
  return COLOURS.includes(lane.kind) ? `var(--${lane.kind})` : lane.number ? "var(--outline)" : "var(--text)";
}
function tokensOf(lane) {
  return lane.items.reduce((sum, item) => sum + (isFork(item) ? Math.max(0, ...item.lanes.map(tokensOf)) : item.size), 0);
}
function label(lane) {
  if (!lane.number) return `Main line, ${lane.outcome}, ${tokensOf(lane)} ${state.page.unit} on its path`;
  const title = lane.title ? ": " + lane.title : "";
  return `Branch ${lane.number}, ${lane.kind}, ${lane.outcome}, ${tokensOf(lane)} ${state.page.unit}${title}`;
}
function draw() {
  const box = $("river"), main = state.page.river;
  const room = Math.max(320, box.clientWidth - 70) * state.zoom;
  const scale = fit(main, room), height = levels(main) * LEVEL + 26;
  const svg = make("svg", { width: Math.max(box.clientWidth - 16, measure(main, scale) + 60), height, role: "group", "aria-label": "Lanes; arrow keys move between them" });
  const bed = make("g", { "aria-hidden": "true" });
  svg.append(bed);
  shape(svg, bed, main, 16, height / 2 + 6, scale, true);
  box.replaceChildren(svg);
  legend();
  choose(state.lane, false);
}
function shape(svg, bed, lane, x, y, scale, critical) {
  const group = make("g", { class: "lane-shape", role: "button", tabindex: "0", "aria-label": label(lane), "data-lane": lane.at,
    onclick: (event) => { event.stopPropagation(); choose(lane.at, true); },
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(lane.at, true); } } });
  svg.append(group);
  const start = x, thick = lane.number ? 12 : 16;
  const later = [];
  for (const item of lane.items) {
    if (isFork(item)) { later.push([item, x]); x = fork(svg, bed, lane, item, x, y, scale); continue; }
    const wide = width(item, scale);
    if (item.kind === "forced") {
      group.append(make("rect", { x: x + 1, y: y - thick / 2 - 3, width: 2, height: thick + 6, fill: colour(lane, item) }, make("title", {}, "written by the runtime: " + item.text)));
    } else if (wide > 0) {
      const lead = state.unit === "time" ? Math.min(wide, (item.wait || 0) * scale) : 0;
      const faint = state.shade && item.mean != null ? 0.2 + 0.8 * Math.exp(item.mean) : 1;
      if (lead > 0) bed.append(make("path", { class: "bed", d: `M${x} ${y}H${x + lead}`, "stroke-dasharray": "2 4" }));
      group.append(make("rect", { class: "water", x: x + lead, y: y - thick / 2, width: Math.max(1, wide - lead), height: thick, rx: Math.min(6, wide / 2), fill: colour(lane, item), "fill-opacity": faint },
        make("title", {}, `${item.kind}, ${item.size} ${state.page.unit}${item.mean == null ? "" : ", mean log-prob " + item.mean.toFixed(3)}`)));
    }
    x += wide;
  }
  if (lane.number) {
    const room = Math.max(6, Math.floor((x - start + GAP * 0.8) / 6.6));
    let caption = `${lane.number} ${lane.title || lane.kind}`;
    if (caption.length > room) caption = caption.slice(0, room - 1) + "…";
    group.append(make("text", { x: start, y: y - thick / 2 - 5 }, caption));
  }
  const open = !later.length;
  group.append(make("text", { class: "note", x: x + 5, y: y + 4 }, open || !lane.number ? String(tokensOf(lane)) : ""));
  const size = Math.max(10, (later.length ? later[0][1] : x) - start);
  group.prepend(make("rect", { class: "ring", x: start - 4, y: y - thick / 2 - 4, width: size + 8, height: thick + 8, rx: 8 }));
  lane.end = x;
  return x;
}
function fork(svg, bed, lane, item, x, y, scale) {
  const total = item.lanes.reduce((sum, one) => sum + levels(one), 0);
  const inner = Math.max(24, ...item.lanes.map((one) => measure(one, scale)));
  const out = x + 2 * GAP + inner;
  let top = y - (total * LEVEL) / 2;
  for (const one of item.lanes) {
    const mine = levels(one) * LEVEL, at = top + mine / 2;
    top += mine;
    const lost = ["cancelled", "failed", "skipped"].includes(one.outcome);
    bed.append(make("path", { class: "bed", d: `M${x} ${y}C${x + GAP * 0.6} ${y} ${x + GAP * 0.4} ${at} ${x + GAP} ${at}` }));
    const end = shape(svg, bed, one, x + GAP, at, scale);
    if (lost) bed.append(make("path", { d: `M${end + 24} ${at - 5}l10 10m0 -10l-10 10`, stroke: "var(--lost)", "stroke-width": 2.5, fill: "none" }));
    else bed.append(make("path", { class: "bed", d: `M${end} ${at}H${out - GAP}C${out - GAP * 0.4} ${at} ${out - GAP * 0.6} ${y} ${out} ${y}` }));
  }
  if (item.policy && item.policy !== "all")
    bed.append(make("text", { x: out - GAP, y: y + LEVEL * total / 2 - 2, fill: "var(--soft)", "font-size": 11, "text-anchor": "end" }, "join: " + item.policy));
  return out;
}
function legend() {
  const names = new Map();
  const see = (lane) => lane.items.forEach((item) => {
    if (isFork(item)) { item.lanes.forEach(see); return; }
    const name = item.kind === "text" ? (lane.number ? (colour(lane) === "var(--lost)" ? lane.outcome + " branch" : lane.kind) : "main line") : item.kind === "forced" ? "written by the runtime" : item.kind;
    names.set(name, colour(lane, item));
  });
  see(state.page.river);
  $("legend").replaceChildren(...[...names].map(([name, paint]) => {
    const chip = make("i"); chip.style.background = paint;
    return make("span", {}, chip, name);
  }));
}

// The text ------------------------------------------------------------------------------------
function choose(at, focus) {
  state.lane = at;
  const lane = state.lanes[at];
  for (const node of document.querySelectorAll(".lane-shape")) {
    const on = Number(node.dataset.lane) === at;
    node.classList.toggle("on", on);
    if (on && focus) node.focus({ preventScroll: true });
  }
  const pre = make("pre");
  write(pre, lane);
  $("text").replaceChildren(make("h3", {}, label(lane)), pre);
}
function write(pre, lane) {
  for (const item of lane.items) {
    if (isFork(item)) {
      for (const one of item.lanes) {
        pre.append(make("span", { class: "lane" }, `\n┆ ${one.number} ${one.title || one.kind} · ${one.outcome}\n`));
        write(pre, one);
      }
      pre.append("\n");
      continue;
    }
    const span = make("span", { class: item.kind });
    if (state.shade && item.tokens.length) {
      for (const [text, value] of item.tokens) {
        const mark = make("mark", { title: `log-prob ${value.toFixed(3)}` }, text);
        const doubt = 1 - Math.exp(value);
        if (doubt > 0.01) mark.style.borderBottomColor = `color-mix(in srgb, var(--trial) ${Math.round(15 + 85 * doubt)}%, transparent)`;
        span.append(mark);
      }
    } else span.append(item.text);
    pre.append(span);
  }
}

// Controls ------------------------------------------------------------------------------------
function unit(name) {
  state.unit = name;
  $("by-tokens").setAttribute("aria-pressed", String(name === "tokens"));
  $("by-time").setAttribute("aria-pressed", String(name === "time"));
  draw();
}
function zoom(by) { state.zoom = Math.min(16, Math.max(1, state.zoom * by)); draw(); }
function controls() {
  themeButton();
  for (const id of ["search", "outcome", "shape", "sort"]) $(id).addEventListener("input", filter);
  $("list").addEventListener("scroll", drawList);
  $("list").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (by) { event.preventDefault(); step(by); }
  });
  $("by-tokens").addEventListener("click", () => unit("tokens"));
  $("by-time").addEventListener("click", () => unit("time"));
  $("shade").addEventListener("click", () => {
    state.shade = !state.shade;
    $("shade").setAttribute("aria-pressed", String(state.shade));
    draw();
  });
  $("narrow").addEventListener("click", () => zoom(0.5));
  $("wide").addEventListener("click", () => zoom(2));
  $("river").addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    choose((state.lane + by + state.lanes.length) % state.lanes.length, true);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== $("search")) { event.preventDefault(); $("search").focus(); }
  });
  window.addEventListener("resize", () => { drawList(); if (state.page) draw(); });
}
(async function start() {
  state.index = await unpack("index");
  controls();
  fillFilters();
  filter();
  const wanted = Number(location.hash.slice(1));
  if (state.index.length) await open(wanted > 0 && wanted < state.index.length ? wanted : 0);
  document.body.dataset.ready = "yes";
})();
