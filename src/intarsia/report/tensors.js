// The tensors of the page by their numbers, and how elements are made: text is always text.

const data = JSON.parse(document.getElementById("data").textContent);
const STATES = [
  { word: data.fine, mark: "·" },
  { word: "different", mark: "≠" },
  { word: "absent", mark: "∅" },
  { word: "faulty", mark: "!" },
];
const SIDES = data.sides.length > 1 ? ["A", "B"] : [""];
const count = data.row.length;

function nameOf(t) {
  const [kind, words, layered, expert] = data.rows[data.row[t]];
  const numbers = [];
  if (layered) numbers.push(data.layer[t]);
  if (expert) numbers.push(data.expert[t]);
  let name = (kind ? `optimizer.${kind}.` : "") + words[0];
  numbers.forEach((n, k) => { name += n + words[k + 1]; });
  return name;
}

/** A text of a side, put together from the words that it shares with others and its own numbers. */
const textOf = (side, [k, ...numbers]) => side.texts[k].map((word, i) => (i ? numbers[i - 1] : "") + word).join("");

const shapeOf = (t) => data.shapes[data.shape[t]];
const stateOf = (t) => data.state[t];

/** The stored tensors of a side that hold elements of tensor `t`. */
const holders = data.sides.map((side) => {
  const held = new Map();
  side.stored.forEach((stored, k) => {
    for (const t of stored[5]) {
      if (!held.has(t)) held.set(t, []);
      held.get(t).push(k);
    }
  });
  return held;
});

const faultsOf = new Map();
data.faults.forEach(([, , tensors], k) => {
  for (const t of tensors) {
    if (!faultsOf.has(t)) faultsOf.set(t, []);
    faultsOf.get(t).push(k);
  }
});

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  return fill(made, attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return fill(made, attributes, children);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A name as text that may be broken after a dot, where a line is too short for it. */
const soft = (name) => name.split(/(?<=\.)/).flatMap((word, k) => (k ? [document.createElement("wbr"), word] : [word]));

const number = (n) => n.toLocaleString("en");
const shapeText = (shape) => (shape === null ? "unknown" : shape.length ? shape.join(" × ") : "scalar");
const elements = (shape) => shape.reduce((product, n) => product * n, 1);

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  while (n >= 1024 && k < units.length - 1) { n /= 1024; k += 1; }
  return `${k ? n.toFixed(2) : n} ${units[k]}`;
}

/** What several tensors are together: the worst state, and words for it. */
function summary(tensors) {
  const tally = [0, 0, 0, 0];
  for (const t of tensors) tally[stateOf(t)] += 1;
  const worst = tally.findLastIndex((n) => n > 0);
  if (tensors.length === 1) return { worst, words: STATES[worst].word };
  if (tally[worst] === tensors.length) return { worst, words: `all ${number(tensors.length)}: ${STATES[worst].word}` };
  const words = tally.map((n, k) => (n ? `${number(n)}: ${STATES[k].word}` : "")).filter(Boolean);
  return { worst, words: `of ${number(tensors.length)}, ${words.reverse().join("; ")}` };
}

/** Arrow keys among buttons in rows, one of which Tab reaches; `null` where there is no button. */
function rove(container, rows) {
  const places = new Map();
  rows.forEach((row, r) => row.forEach((button, c) => button && places.set(button, [r, c])));
  const first = places.keys().next().value;
  if (first) first.tabIndex = 0;
  const next = (r, c, dr, dc) => {
    for (r += dr, c += dc; rows[r] && c >= 0 && c < rows[r].length; r += dr, c += dc) {
      if (rows[r][c]) return rows[r][c];
    }
    return null;
  };
  const end = (r, dc) => next(r, dc > 0 ? -1 : rows[r].length, 0, dc);
  container.addEventListener("focusin", (event) => {
    if (!places.has(event.target)) return;
    for (const button of places.keys()) if (button.tabIndex === 0) button.tabIndex = -1;
    event.target.tabIndex = 0;
  });
  container.addEventListener("keydown", (event) => {
    const at = places.get(event.target);
    if (!at || event.altKey || event.metaKey) return;
    const [r, c] = at;
    const to = {
      ArrowLeft: () => next(r, c, 0, -1), ArrowRight: () => next(r, c, 0, 1),
      ArrowUp: () => next(r, c, -1, 0), ArrowDown: () => next(r, c, 1, 0),
      Home: () => end(event.ctrlKey ? 0 : r, 1), End: () => end(event.ctrlKey ? rows.length - 1 : r, -1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const button = to();
    if (button) { button.focus(); button.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  });
}
