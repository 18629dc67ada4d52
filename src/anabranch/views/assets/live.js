"use strict";
// Asks for the figures every two seconds while the page is looked at, and draws them.
const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 4 });
const seconds = (value) => (value === null ? "–" : value.toFixed(value < 10 ? 2 : 1) + " s");
const cells = (...values) => make("tr", {}, ...values.map((value) => make("td", {}, value)));
const total = (groups, name) => groups.reduce((sum, group) => sum + group[name], 0);
function tile(name, value) {
  return make("div", {}, make("b", {}, value), make("span", { class: "soft" }, name));
}
function drawTiles(data) {
  const ended = total(data.groups, "ended");
  const good = data.groups.reduce((sum, group) => sum + (group.outcomes.answered || 0), 0);
  const recent = data.last.filter((one) => data.now - one[0] <= 60).length;
  $("tiles").replaceChildren(
    tile("in flight", number(data.in_flight)), tile("ended in the last minute", number(recent)),
    tile("answered of all that ended", ended ? (100 * good / ended).toFixed(1) + " %" : "–"),
    tile("tokens sampled", number(total(data.groups, "sampled"))),
    tile("cost", number(total(data.groups, "cost"))));
}
function drawLast(last) {
  const most = Math.max(...last.map((one) => one[1]), 1e-9);
  const svg = make("svg", { viewBox: "0 0 1200 100", preserveAspectRatio: "none", "aria-hidden": "true" });
  last.forEach((one, place) => {
    const height = Math.max(1, 100 * one[1] / most);
    svg.append(make("rect", { class: one[2], x: place * 10 + 1, y: 100 - height, width: 8, height }));
  });
  $("last").replaceChildren(svg);
  const counts = {};
  for (const one of last) counts[one[2]] = (counts[one[2]] || 0) + 1;
  const told = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
  $("last").setAttribute("aria-label", told ? `${told}; the longest took ${seconds(most)}` : "none yet");
  $("legend").textContent = told ? `${told}. The tallest bar is ${seconds(most)}.` : "none yet";
}
function drawGroups(groups) {
  $("groups").replaceChildren(...groups.map((group) => cells(
    group.model, group.key || "nobody's", number(group.in_flight), number(group.ended),
    Object.entries(group.outcomes).map(([name, count]) => `${name} ${count}`).join(", "),
    seconds(group.first_median), seconds(group.seconds_median), seconds(group.seconds_95),
    number(group.sampled), group.path ? (group.sampled / group.path).toFixed(2) : "–",
    number(group.cost))));
}
function drawBudgets(budgets) {
  $("budgets").replaceChildren(...budgets.map((budget) => {
    const share = (amount) => `width:${budget.cap ? Math.min(100, 100 * amount / budget.cap) : 100}%`;
    const bar = make("div", { class: "bar", "aria-hidden": "true" });
    for (const name of ["spent", "reserved"]) {
      const part = make("div", { class: name });
      part.style.cssText = share(budget[name]);
      bar.append(part);
    }
    const whose = budget.key ? `key ${budget.key}` : "everybody";
    const window = budget.seconds ? ` per ${number(budget.seconds)} s` : "";
    return make("div", {}, `${whose}: ${budget.kind}${window}, ${number(budget.spent)} spent and `
      + `${number(budget.reserved)} reserved of ${number(budget.cap)}`, bar);
  }));
  if (!budgets.length) $("budgets").textContent = "none are set";
}
function draw(data) {
  drawTiles(data); drawLast(data.last); drawGroups(data.groups); drawBudgets(data.budgets);
  $("running").replaceChildren(...data.running.map((one) => cells(
    one.id.slice(0, 8), one.model, one.key || "nobody's", one.mode, seconds(one.seconds))));
  $("refused").textContent = Object.entries(data.refused)
    .map(([code, count]) => `${code}: ${number(count)}`).join(" · ") || "none";
  $("state").textContent = "as of " + new Date(1000 * data.now).toLocaleTimeString();
}
async function poll() {
  if ($("pause").getAttribute("aria-pressed") !== "true" && !document.hidden) {
    try {
      const answer = await fetch(document.body.dataset.source, { cache: "no-store" });
      if (answer.ok) draw(await answer.json());
      else $("state").textContent = `the gateway answers ${answer.status}`;
    } catch (error) { $("state").textContent = "the gateway does not answer; trying again"; }
    document.body.dataset.ready = "yes";
  }
  setTimeout(poll, 2000);
}
$("pause").addEventListener("click", () => {
  const on = $("pause").getAttribute("aria-pressed") !== "true";
  $("pause").setAttribute("aria-pressed", String(on));
});
themeButton();
poll();
