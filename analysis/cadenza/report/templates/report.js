// SPDX-License-Identifier: Apache-2.0
// Draws each picture when it comes near the window, the others when there is time (they may be
// printed), and all again when the theme changes.
const darkColours = JSON.parse(document.getElementById("dark").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const touch = window.matchMedia("(pointer: coarse)");
const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""],
                  [1e-3, "m"], [1e-6, "u"], [1e-9, "n"]];
const PREFIXED = ["s", "B", "FLOP", "FLOP/s", ""];

function prefixOf(value, unit) {
  const found = PREFIXES.find(([size]) => Math.abs(value) >= size * 0.9999999) ?? [1, ""];
  const none = value === 0 || !PREFIXED.includes(unit) || (unit !== "s" && found[0] < 1)
    || (unit === "s" && found[0] > 1);
  return none ? [1, ""] : found;
}

// Four digits of a number with its unit; "_" is none.
function si(value, unit) {
  if (unit === "%") return `${(100 * value).toFixed(1)}%`;
  if (unit === "_") return `${Number(value.toPrecision(4))}`;
  const [size, prefix] = prefixOf(value, unit);
  const text = value === 0 ? "0" : (value / size).toPrecision(4);
  return `${/e/.test(text) ? Number(text) : text} ${prefix}${unit}`.replace("-", "−").trimEnd();
}

// The text of one of an axis' ticks: all have the unit that suits the largest.
function tickText(ticks, index, unit, signed) {
  const value = ticks[index];
  if (unit === "%") return `${Number((100 * value).toPrecision(6))}%`;
  if (value === 0) return "0";
  const most = Math.max(...ticks.map(Math.abs)), least = Math.min(...ticks.map(Math.abs));
  const even = ticks.length < 3 || Math.abs(ticks[0] + ticks[2] - 2 * ticks[1]) < 1e-6 * most;
  const [size, prefix] = prefixOf(even ? most : value, unit);
  const text = `${Number((value / size).toPrecision(6))} ${prefix}${unit}`.trimEnd();
  return (signed && value > 0 ? "+" : "") + text.replace("-", "−");
}

async function unpacked(script) {
  const bytes = Uint8Array.from(atob(script.textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Runs one after another: what is drawn of a card at last is what its reader chose at last.
let work = Promise.resolve();
const shown = new Map();  // card: what Bokeh drew there

function draw(card) {
  work = work.then(() => drawn(card)).catch((error) => console.error(error));
}

async function drawn(card) {
  const specs = card.querySelectorAll("script[type='application/gzip']");
  const text = await unpacked(specs[card.querySelector("select")?.selectedIndex ?? 0]);
  const item = JSON.parse(dark.matches
    ? text.replace(/#[0-9a-f]{6}/g, (colour) => darkColours[colour] ?? colour) : text);
  const plot = card.querySelector(".plot");
  shown.get(card)?.clear();
  plot.replaceChildren();
  plot.style.minHeight = "0";
  const views = await Bokeh.embed.embed_item(item, plot);
  shown.set(card, views);
  const [view] = views;
  if (touch.matches) view.model.toolbar.active_drag = null;  // a finger scrolls the page
  view.el.addEventListener("dblclick", () => view.reset());
  plot.view = view;
}

async function start() {
  if (!("DecompressionStream" in window)) {
    document.getElementById("old").hidden = false;
    return;
  }
  const library = document.createElement("script");
  library.textContent = await unpacked(document.getElementById("library"));
  document.head.append(library);
  document.querySelectorAll(".tree").forEach(grow);
  const plots = [...document.querySelectorAll(".plot")];
  const waiting = new Set(plots.map((plot) => plot.closest(".card")));
  const once = (card) => waiting.delete(card) && draw(card);
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) once(entry.target);
    }
  }, {rootMargin: "800px"});
  for (const card of waiting) {
    near.observe(card);
    card.querySelector("select")?.addEventListener("change", () => draw(card));
  }
  dark.addEventListener("change", () => [...shown.keys()].forEach(draw));
  if (touch.matches) return;  // a phone has little memory for pictures
  const rest = () => {
    const [card] = waiting;
    if (card === undefined) return;
    once(card);
    work.then(() => setTimeout(rest, 50));
  };
  setTimeout(rest, 1000);
}

start();
