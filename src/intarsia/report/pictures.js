// Pictures of where a stored tensor lies: its files as bars, its chunks as blocks.

const BARS = 48;

function boxText(box, shape) {
  const [offsets, sizes] = box ?? [shape.map(() => 0), shape];
  return `[${offsets.map((o, k) => `${o}:${o + sizes[k]}`).join(", ")}]`;
}

/** Each file that holds a chunk, as a bar from its first byte to its last. */
function bars(side, chunks) {
  const byFile = new Map();
  for (const chunk of chunks) {
    if (!byFile.has(chunk[0])) byFile.set(chunk[0], []);
    byFile.get(chunk[0]).push(chunk);
  }
  const figure = make("figure", {}, make("figcaption", {}, "In the files: each bar is a file from its first byte to its last."));
  for (const [file, held] of [...byFile].slice(0, BARS)) {
    const [name, known] = side.files[file];
    const size = Math.max(known, ...held.map((c) => c[1] + c[2]), 1);
    const told = held.map((c) => `${number(c[1])} to ${number(c[1] + c[2])}`).slice(0, 4).join("; ");
    const more = held.length > 4 ? ` and ${held.length - 4} more ranges` : "";
    const ranges = held.map((c) => {
      const width = Math.max((1000 * c[2]) / size, 4);
      return draw("rect", { class: "bar-here", x: Math.min((1000 * c[1]) / size, 1000 - width), y: 0, width, height: 14 });
    });
    figure.append(
      make("div", { class: "bar-name" }, make("span", { class: "name" }, name), make("span", {}, known ? bytes(known) : "")),
      draw("svg", { viewBox: "0 0 1000 14", height: 14, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: bytes ${told}${more} of ${number(size)}` },
        draw("rect", { class: "bar-ground", x: 0, y: 0, width: 1000, height: 14 }), ...ranges),
    );
  }
  if (byFile.size > BARS) figure.append(make("p", {}, `… and ${number(byFile.size - BARS)} more files`));
  return figure;
}

/** The chunks as blocks of the stored tensor, along the two axes that are cut. */
function blocks(side, shape, chunks) {
  const boxes = chunks.map((c) => c[3] ?? [shape.map(() => 0), shape]);
  const cut = shape.map((_, axis) => axis).filter((axis) => new Set(boxes.map(([o, n]) => `${o[axis]} ${n[axis]}`)).size > 1);
  const last = shape.map((_, axis) => axis).slice(-2);
  const axes = (cut.length ? cut : last).slice(0, 2);
  if (axes.length < 2) axes.unshift(...last.filter((axis) => !axes.includes(axis)).slice(0, 1));
  axes.sort((a, b) => a - b);
  const [down, across] = axes.length === 2 ? axes : [null, axes[0]];
  const rows = down === null ? 1 : shape[down];
  const columns = shape[across];
  const W = 400;
  const H = down === null ? 40 : Math.min(Math.max((W * rows) / columns, 48), 200);
  const title = `${chunks.length} ${chunks.length === 1 ? "block" : "blocks"} of ${shapeText(shape)}`;
  const picture = draw("svg", { class: "blocks", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${title}; the table below lists them` });
  picture.append(draw("rect", { class: "whole", x: 0, y: 0, width: W, height: H }));
  boxes.forEach(([offsets, sizes], k) => {
    const x = (W * offsets[across]) / columns;
    const y = down === null ? 0 : (H * offsets[down]) / rows;
    const w = (W * sizes[across]) / columns;
    const h = down === null ? H : (H * sizes[down]) / rows;
    const rank = side.files[chunks[k][0]][2];
    const text = rank === null ? `${k}` : `rank ${rank}`;
    const shown = w > text.length * 7 && h > 13 ? text : w > 18 && h > 13 ? rank ?? `${k}` : "";
    picture.append(
      draw("rect", { class: `block ${k % 2 ? "b" : "a"}`, x, y, width: w, height: h }),
      shown ? draw("text", { class: "block-label", x: x + w / 2, y: y + h / 2 }, shown) : "",
    );
  });
  const named = axes.map((axis) => `axis ${axis} ${axis === across ? "across" : "down"}`).join(", ");
  const ranks = chunks.some((c) => side.files[c[0]][2] !== null);
  const part = boxes.reduce((sum, [, sizes]) => sum + elements(sizes), 0) < elements(shape) ? "; what lies elsewhere is left open" : "";
  const folded = cut.length > 2 ? "; cut along further axes, so some blocks hide others" : "";
  return make("figure", {}, make("figcaption", {},
    `${ranks ? "On the mesh: the rank that wrote each block" : "Blocks, numbered as in the table"}; ${named}${part}${folded}.`), picture);
}

function table(side, shape, chunks, t) {
  const heads = ["block", "file", "first byte", "end", "box", "elements"];
  const rows = chunks.map((c, k) => make("tr", {},
    make("td", { class: "number" }, String(k)), make("td", { class: "name" }, side.files[c[0]][0]),
    make("td", { class: "number" }, number(c[1])), make("td", { class: "number" }, number(c[1] + c[2])),
    make("td", { class: "name" }, boxText(c[3], shape)), make("td", { class: "number" }, number(heldBy(c, t, shape)))));
  return make("div", { class: "wide", role: "region", tabindex: 0, "aria-label": "Chunks" },
    make("table", { class: "chunks" }, make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, ...rows)));
}

/** How many elements of tensor `t` a chunk holds. */
function heldBy(chunk, t, shape) {
  const held = chunk[4];
  if (!held) return elements(chunk[3] ? chunk[3][1] : shape);
  for (let k = 0; k < held.length; k += 2) if (held[k] === t) return held[k + 1];
  return 0;
}
