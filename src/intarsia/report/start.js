// What happens as the page opens: the map is built, names become buttons, an address chooses a tensor.

const FOUND = 50;
const map = document.getElementById("map");

function search() {
  const results = make("ul", { class: "results", "aria-label": "Tensors found" });
  const told = make("p", { role: "status", class: "unseen" });
  const input = make("input", { type: "search", id: "search", autocomplete: "off", spellcheck: "false" });
  let waiting = 0;
  input.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(look, 120); });
  function look() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    let total = 0;
    for (let t = 0; words.length && t < count; t += 1) {
      const name = nameOf(t).toLowerCase();
      if (words.every((word) => name.includes(word))) { total += 1; if (found.length < FOUND) found.push(t); }
    }
    results.replaceChildren(...found.map((t) => make("li", {}, chooser(t, ...soft(nameOf(t)), ` (${STATES[stateOf(t)].word})`))));
    if (total > FOUND) results.append(make("li", {}, `… and ${number(total - FOUND)} more`));
    if (words.length && !total) results.append(make("li", {}, "No tensor has this in its name."));
    told.textContent = words.length ? `${number(total)} tensors found` : "";
  }
  return make("div", { class: "tools", role: "search" },
    make("label", { for: "search" }, "Find a tensor by parts of its name, such as “3 q_proj”"), input, told, results);
}

function chooser(t, ...words) {
  const go = () => { select(t); title.parentElement.focus({ preventScroll: true }); };
  return make("button", { type: "button", class: "link name", onclick: go }, ...words);
}

function groups(onlyWrong) {
  const kinds = [...new Set(data.rows.map((row) => row[0]))].sort();
  return kinds.map((kind, k) => {
    if (k === 0) return grid(kind, onlyWrong, choose);
    const rows = data.rows.filter((row) => row[0] === kind).length;
    const more = make("details", {}, make("summary", {}, `Optimizer state: ${kind} (${number(rows)} rows)`));
    more.addEventListener("toggle", () => { if (more.childElementCount < 2) more.append(grid(kind, onlyWrong, choose)); });
    return more;
  });
}

function open() {
  if (!count) {
    map.append(make("p", {}, "No tensor could be read, so there is no map."));
    return;
  }
  if (new Set(data.layer).size > 24) map.parentElement.classList.add("long");
  const place = make("div", {}, ...groups(false));
  map.append(search(), legend());
  if (wrong.some(Boolean) && !wrong.every(Boolean)) {
    const tick = make("input", { type: "checkbox", onchange: () => place.replaceChildren(...groups(tick.checked)) });
    map.append(make("label", { class: "tick" }, tick, "Only rows and layers where something is wrong"));
  }
  map.append(place);
  for (const named of document.querySelectorAll("code[data-tensor]")) {
    named.replaceWith(chooser(Number(named.dataset.tensor), ...soft(named.textContent)));
  }
  addEventListener("hashchange", follow);
  follow();
}

function follow() {
  const asked = /^#tensor=(.*)$/.exec(location.hash);
  if (!asked) return;
  let name;
  try { name = decodeURIComponent(asked[1]); } catch { return; }
  for (let t = 0; t < count; t += 1) if (nameOf(t) === name) { select(t); return; }
}

open();
