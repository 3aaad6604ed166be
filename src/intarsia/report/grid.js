// The map: parameters down, layers across, one button a cell; experts share their layer's cell.

const ROWS = 100;
const COLUMNS = 128;
const OUTSIDE = "";
const WIDE = 12;
const LISTED = 100;

/** For each row of the map, its tensors by layer. */
const cellsOf = data.rows.map(() => new Map());
for (let t = 0; t < count; t += 1) {
  const cells = cellsOf[data.row[t]];
  const layer = data.layer[t] === null ? OUTSIDE : data.layer[t];
  if (!cells.has(layer)) cells.set(layer, []);
  cells.get(layer).push(t);
}
for (const cells of cellsOf) for (const tensors of cells.values()) tensors.sort((a, b) => data.expert[a] - data.expert[b]);
const wrong = data.rows.map((_, r) => [...cellsOf[r].values()].flat().some((t) => stateOf(t) > 0));

const commonest = (() => {
  const tally = new Map();
  for (const [, words, layered] of data.rows) {
    if (layered) tally.set(words[0], (tally.get(words[0]) || 0) + 1);
  }
  return [...tally].sort((a, b) => b[1] - a[1])[0]?.[0];
})();

/** A row's name, without what nearly all rows begin with. */
function label(r) {
  const [, words, layered] = data.rows[r];
  if (!layered || words[0] !== commonest) return words.join("*");
  return words.slice(1).join("*").replace(/^\./, "");
}

/** A row and a layer in words. */
function placeOf(t) {
  return label(data.row[t]) + (data.layer[t] === null ? "" : `, layer ${data.layer[t]}`);
}

/** The table of one kind of tensor, built again where the page turns. */
function grid(kind, onlyWrong, choose) {
  const all = data.rows.map((_, r) => r).filter((r) => data.rows[r][0] === kind && (wrong[r] || !onlyWrong));
  const faulty = (r, layer) => cellsOf[r].get(layer).some((t) => stateOf(t) > 0);
  const troubled = new Set(all.flatMap((r) => [...cellsOf[r].keys()].filter((layer) => faulty(r, layer))));
  const found = onlyWrong ? troubled : new Set(all.flatMap((r) => [...cellsOf[r].keys()]));
  const layers = [...found].sort((a, b) => (a === OUTSIDE ? -1 : b === OUTSIDE ? 1 : a - b));
  const view = { row: 0, column: 0 };
  const box = make("div");

  function build() {
    const rows = all.slice(view.row, view.row + ROWS);
    const columns = layers.slice(view.column, view.column + COLUMNS);
    const buttons = [];
    const body = make("tbody");
    for (const r of rows) {
      const line = make("tr", {}, make("th", { scope: "row", class: "name", title: data.rows[r][1].join("*") }, ...soft(label(r))));
      buttons.push(columns.map((layer) => {
        const tensors = cellsOf[r].get(layer);
        const button = tensors ? cell(tensors, choose) : null;
        line.append(make("td", {}, button ?? ""));
        return button;
      }));
      body.append(line);
    }
    const heads = columns.map((layer) => make("th", { scope: "col" }, layer === OUTSIDE
      ? make("span", { "aria-label": "outside the layers", title: "outside the layers" }, "–") : String(layer)));
    const table = make("table", { role: "grid", "aria-label": `${kind || "weights"}: parameters by layer` },
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "layer"), ...heads)), body);
    rove(table, buttons);
    box.replaceChildren(
      shortcuts(rows, columns, buttons),
      pager("rows", all.length, ROWS, "row"), pager("layers", layers.length, COLUMNS, "column"),
      make("div", { class: "wide grid" }, table),
    );
    if (!rows.length) box.replaceChildren(make("p", {}, "Nothing here."));
  }

  /** Buttons that lead to the layers where something is wrong, which may be far to the right. */
  function shortcuts(rows, columns, buttons) {
    const there = columns.map((layer, c) => [layer, c]).filter(([layer]) => troubled.has(layer));
    if (!there.length || columns.length < WIDE) return "";
    const go = (c) => () => {
      const r = rows.findIndex((row, k) => buttons[k][c] && faulty(row, columns[c]));
      buttons[r][c].focus();
      buttons[r][c].scrollIntoView({ block: "nearest", inline: "center" });
    };
    const links = there.slice(0, LISTED).map(([layer, c]) => make("li", {}, make("button", { type: "button", onclick: go(c) },
      layer === OUTSIDE ? "outside the layers" : String(layer))));
    if (there.length > LISTED) links.push(make("li", {}, `and ${number(there.length - LISTED)} more`));
    return make("div", { class: "shortcuts" }, make("span", {}, "Something is wrong in layer"), make("ul", { "aria-label": "Layers where something is wrong" }, ...links));
  }

  function pager(noun, total, step, axis) {
    if (total <= step) return "";
    const turn = (by) => () => {
      view[axis] += by;
      build();
      const again = [...box.querySelectorAll(`[data-axis="${axis}"]`)];
      (again[by < 0 ? 0 : 1].disabled ? again[by < 0 ? 1 : 0] : again[by < 0 ? 0 : 1]).focus();
    };
    const last = Math.min(view[axis] + step, total);
    return make("div", { class: "pager" },
      make("button", { type: "button", "data-axis": axis, onclick: turn(-step), disabled: view[axis] === 0 ? "" : null }, `Earlier ${noun}`),
      make("button", { type: "button", "data-axis": axis, onclick: turn(step), disabled: last === total ? "" : null }, `Later ${noun}`),
      make("span", {}, `${noun} ${number(view[axis] + 1)} to ${number(last)} of ${number(total)}`));
  }

  build();
  return box;
}

function cell(tensors, choose) {
  const { worst, words } = summary(tensors);
  const text = `${placeOf(tensors[0])}: ${words}`;
  return make("button", {
    type: "button", tabindex: -1, title: text, "aria-label": text, "data-first": tensors[0],
    class: `cell s${worst}${tensors.length > 1 ? " many" : ""}`,
    onclick: () => choose(tensors),
  }, STATES[worst].mark);
}

function legend() {
  const present = new Set(data.state).add(0);
  const items = STATES.map((state, k) => present.has(k) && make("li", {},
    make("span", { class: `cell s${k}`, "aria-hidden": "true" }, state.mark), state.word)).filter(Boolean);
  if (data.rows.some((row) => row[3])) {
    items.push(make("li", {}, make("span", { class: "cell s0 many", "aria-hidden": "true" }, "·"), "several experts, the worst shown"));
  }
  return make("ul", { class: "legend", "aria-label": "Legend" }, ...items);
}
