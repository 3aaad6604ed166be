// The chosen tensor: what was found of it, and where it lies in each checkpoint.

const SHOWN = 64;
const title = document.getElementById("detail-title");
const body = document.getElementById("detail-body");
const status = document.getElementById("status");

function choose(tensors) {
  if (tensors.length === 1) select(tensors[0]);
  else show(`${placeOf(tensors[0])}: ${number(tensors.length)} experts`, experts(tensors, null), summary(tensors).words);
  mark(tensors[0]);
}

function select(t) {
  const siblings = cellsOf[data.row[t]].get(data.layer[t] === null ? OUTSIDE : data.layer[t]);
  const parts = [facts(t), ...found(t), ...data.sides.flatMap((side, k) => storage(side, k, t))];
  if (siblings.length > 1) parts.push(make("h3", {}, "Other experts of this layer"), ...experts(siblings, t));
  show(nameOf(t), parts, STATES[stateOf(t)].word);
  mark(siblings[0]);
  try {
    history.replaceState(null, "", `#tensor=${encodeURIComponent(nameOf(t))}`);
  } catch { /* a page that may not name its own place still shows the tensor */ }
}

function show(name, parts, words) {
  title.replaceChildren(...soft(name));
  const back = make("p", {}, make("a", { href: "#map" }, "Back to the map"));
  body.replaceChildren(...parts, back);
  status.textContent = `${name}: ${words}. Details follow the map.`;
  const place = title.getBoundingClientRect();
  if (place.top < 0 || place.top > innerHeight - 80) document.getElementById("detail").scrollIntoView({ block: "start" });
}

function mark(first) {
  for (const old of document.querySelectorAll('.cell[aria-current="true"]')) old.removeAttribute("aria-current");
  document.querySelector(`.grid .cell[data-first="${first}"]`)?.setAttribute("aria-current", "true");
}

function experts(tensors, chosen) {
  const buttons = tensors.map((t) => make("button", {
    type: "button", tabindex: -1, class: `cell s${stateOf(t)}`, "aria-current": t === chosen ? "true" : null,
    "aria-label": `${nameOf(t)}: ${STATES[stateOf(t)].word}`, onclick: () => { select(t); title.parentElement.focus(); },
  }, `${data.expert[t] ?? ""}`, stateOf(t) ? make("span", {}, STATES[stateOf(t)].mark) : null));
  const box = make("div", { class: "experts", role: "group", "aria-label": "Experts" }, ...buttons);
  rove(box, [buttons]);
  return [make("p", {}, `${summary(tensors).words}. Choose one by its number.`), box];
}

function facts(t) {
  const shape = shapeOf(t);
  const pairs = [
    ["state", `${STATES[stateOf(t)].mark} ${STATES[stateOf(t)].word}`],
    ["element type", data.dtypes[data.dtype[t]]],
    ["shape", shapeText(shape)],
    ["elements", shape === null ? "unknown" : number(elements(shape))],
  ];
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

function found(t) {
  const parts = [];
  const said = data.said[t];
  if (said) {
    const [n, first, gap, diagnosis] = said;
    const at = first.length ? `, first at [${first.join(", ")}]` : "";
    parts.push(make("p", {}, `Elements that differ: ${number(n)}${at}; largest gap ${gap}. ${diagnosis}`));
  }
  for (const k of faultsOf.get(t) ?? []) {
    const [kind, text] = data.faults[k];
    const listed = document.getElementById(`fault-${k}`);
    parts.push(make("p", {}, listed ? make("a", { href: `#fault-${k}` }, kind) : make("strong", {}, kind), `: ${text}`));
  }
  return parts.length ? [make("h3", {}, "What was found"), ...parts] : [];
}

function storage(side, k, t) {
  const held = holders[k].get(t) ?? [];
  const parts = [make("h3", {}, SIDES[k] ? `Where it lies in ${SIDES[k]}` : "Where it lies")];
  if (!held.length) parts.push(make("p", {}, "Nothing of it is stored here."));
  for (const which of held) parts.push(...one(side, side.stored[which], t));
  return parts;
}

function one(side, [named, dtype, shape, all, total, tensors, drawn], t) {
  const name = named ? textOf(side, named) : nameOf(t);
  const drawing = drawn ? textOf(side, drawn) : drawn;
  const mine = all.filter((c) => heldBy(c, t, shape) > 0 || !elements(shape));
  const chunks = mine.slice(0, SHOWN);
  const parts = [make("p", {}, "Stored as ", make("code", {}, name), `, ${dtype}, ${shapeText(shape)}`,
    tensors.length > 1 ? `, with ${number(tensors.length - 1)} other ${tensors.length > 2 ? "tensors" : "tensor"}.` : ".")];
  if (drawing) parts.push(make("pre", { tabindex: 0, role: "img", "aria-label": `Drawing of ${name}: rows on the left, tensors on the right` }, drawing));
  else if (drawing === "") parts.push(make("p", {}, "Its drawing is left out here; ", make("code", {}, "intarsia explain"), " draws it."));
  if (!chunks.length) return [...parts, make("p", {}, "No chunk of it is stored.")];
  parts.push(bars(side, chunks));
  if (shape.length && all.length > 1) parts.push(blocks(side, shape, chunks));
  parts.push(table(side, shape, chunks, t));
  const left = mine.length - chunks.length;
  if (left > 0) parts.push(make("p", {}, `… and ${number(left)} more chunks.`));
  if (all.length < total) parts.push(make("p", {}, `This page lists ${number(all.length)} of its ${number(total)} chunks; `, make("code", {}, "intarsia explain"), " lists all."));
  return parts;
}
