// SPDX-License-Identifier: Apache-2.0
// The tree of a job: rows for what is unfolded, of the metric that is chosen.
async function grow(table) {
  const card = table.closest(".card"), chooser = card.querySelector("select");
  const data = JSON.parse(await unpacked(card.querySelector("script")));
  const job = {label: data.job, ranks: Object.keys(data.ranks).map(Number)};
  job.below = () => data.nodes.map(([host, ranks]) => ({label: host, ranks, below: () =>
    ranks.map((rank) => ({label: `rank ${rank} · ${data.ranks[rank]}`, ranks: [rank], below: () =>
      Object.keys(metric().lanes).filter((lane) => lane && metric().lanes[lane][rank])
        .map((lane) => ({label: lane, ranks: [rank], lane}))}))}));
  const open = new Set([data.job]);  // paths of labels
  if (data.nodes.length === 1) open.add(`${data.job}/${data.nodes[0][0]}`);
  const metric = () => data.metrics[chooser.selectedIndex];
  const value = (rank, lane) => lane === undefined
    ? Object.values(metric().lanes).reduce((sum, of) => sum + (of[rank] ?? 0), 0)
    : metric().lanes[lane][rank] ?? 0;

  function row(node, depth, path, whole) {
    const values = node.ranks.map((rank) => value(rank, node.lane));
    const sum = values.reduce((a, b) => a + b, 0), most = Math.max(...values);
    const several = node.ranks.length > 1, tr = document.createElement("tr");
    const cells = [si(sum, metric().unit), si(whole ? sum / whole : 0, "%"),
                   several ? si(sum / values.length, metric().unit) : "",
                   several ? si(most, metric().unit) : "",
                   several ? `rank ${node.ranks[values.indexOf(most)]}` : ""];
    const first = tr.insertCell();
    first.style.setProperty("--depth", depth);
    const below = node.below?.() ?? [];
    const label = document.createElement(below.length ? "button" : "span");
    label.textContent = node.label;
    if (below.length) {
      label.setAttribute("aria-expanded", open.has(path));
      label.addEventListener("click", () => {
        if (!open.delete(path)) open.add(path);
        show();
        table.querySelector(`[data-path="${CSS.escape(path)}"] button`).focus();
      });
    } else label.className = "leaf";
    first.append(label);
    cells.forEach((text, number) => {
      const cell = tr.insertCell();
      cell.textContent = text;
      if (number < 4) cell.className = "number";
    });
    tr.dataset.path = path;
    tr.dataset.sum = sum;
    const rows = [tr];
    if (open.has(path))
      for (const one of below) rows.push(...row(one, depth + 1, `${path}/${one.label}`, whole));
    return rows;
  }

  function show() {
    const whole = job.ranks.reduce((sum, rank) => sum + value(rank), 0);
    table.tBodies[0].replaceChildren(...row(job, 0, data.job, whole));
  }
  chooser.addEventListener("change", show);
  show();
}
