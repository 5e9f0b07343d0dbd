// SPDX-License-Identifier: Apache-2.0
// Draws each picture when it comes near the window, and again when the theme changes.
const themes = JSON.parse(document.getElementById("themes").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const touch = window.matchMedia("(pointer: coarse)");
const drawn = new Set();

function draw(card) {
  const chooser = card.querySelector("select");
  const specs = card.querySelectorAll("script[type='application/json']");
  const spec = JSON.parse(specs[chooser ? chooser.selectedIndex : 0].textContent);
  spec.layout.template = themes[dark.matches ? "dark" : "light"];
  if (touch.matches) spec.layout.dragmode = false;  // a finger scrolls the page
  const options = {responsive: true, displaylogo: false,
                   modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]};
  if (touch.matches) options.displayModeBar = false;
  Plotly.react(card.querySelector(".plot"), spec.data, spec.layout, options);
  drawn.add(card);
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    near.unobserve(entry.target);
    draw(entry.target);
  }
}, {rootMargin: "800px"});

for (const plot of document.querySelectorAll(".plot")) {
  const card = plot.closest(".card");
  near.observe(card);
  card.querySelector("select")?.addEventListener("change", () => draw(card));
}
dark.addEventListener("change", () => drawn.forEach(draw));
window.addEventListener("beforeprint", () =>
  document.querySelectorAll(".card:has(.plot)").forEach((card) => drawn.has(card) || draw(card)));
