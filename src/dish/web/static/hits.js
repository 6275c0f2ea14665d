// The answer to a search: the query, the hits and what they have in common.
import { bitsOf, strip } from "./bits.js";
import { openLarge } from "./large.js";
import { $, fileAddress, make, nearness, picture, state, words } from "./page.js";

const narrow = matchMedia("(max-width: 46rem)");
const ms = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ms`;

export function show(answer, trip, searchById) {
  const bits = bitsOf(answer.code, answer.n_bits);
  const { asked } = state;
  state.answer = answer;
  $("query").hidden = false;
  $("groups").hidden = true;
  $("query-picture").replaceChildren(...(asked.picture ? [asked.picture()] : []));
  $("query-name").textContent = asked.name;
  $("add").hidden = !(state.info.writable && asked.file);
  $("add").textContent = "Add to the collection";
  $("share").textContent = "Copy the link";
  const perRow = Math.min(narrow.matches ? 32 : 64, bits.length);
  $("query-bits").replaceChildren(strip(bits, null, perRow, `code of ${bits.length} bits: ${answer.code}`));
  $("query-hex").textContent = `${answer.code} · ${bits.length} bits`;
  $("time-encode").textContent = ms(answer.time_ms.encode);
  $("time-search").textContent = ms(answer.time_ms.search);
  $("time-trip").textContent = ms(trip);
  $("hits").replaceChildren(...answer.ids.map((id, i) => hit(answer, i, bits, searchById)));
  $("legend").hidden = answer.ids.length === 0;
  summarise(answer);
}

function verdict(label) {
  const { label: wanted } = state.asked;
  if (wanted === null || wanted === undefined || label === null) return null;
  const share = Array.isArray(label) && Array.isArray(wanted) ? label.some((l) => wanted.includes(l)) : label === wanted;
  return share ? "right" : "wrong";
}

function hit(answer, i, query, searchById) {
  const id = answer.ids[i];
  const label = words(answer.labels[i]);
  const distance = answer.distances[i];
  const judged = verdict(answer.labels[i]);
  const bits = bitsOf(answer.codes[i], answer.n_bits);
  const differs = bits.map((bit, j) => bit !== query[j]);
  const places = differs.flatMap((d, j) => (d ? [j] : []));
  const mark = { right: "✓ ", wrong: "✗ " }[judged] || "";
  const itself = state.asked.id === id;
  const near = itself ? "itself" : nearness(distance);
  const text = mark + (label || String(id).split("/").at(-1));
  const facts = make("span", { class: "facts" },
    make("span", { class: "label", title: label ? `${label}: ${id}` : String(id) }, text),
    make("span", { class: "distance" },
      make("span", { class: "in-words" }, near),
      make("span", { class: "of-bits" }, itself ? "itself" : `${distance} ${distance === 1 ? "bit" : "bits"}`)));
  const button = make("button", { type: "button", class: judged || "" });
  const said = judged ? `, ${judged === "right" ? "the same label" : "another label"}` : "";
  const does = state.info.pictures ? "Show it large" : "Search with it";
  button.setAttribute("aria-label", `Item ${id}${label ? `, ${label}` : ""}${said}, ${near}, distance ${distance}. ${does}`);
  if (state.info.pictures) button.append(picture(id, ""));
  else button.append(make("span", { class: "name" }, `item ${id}`));
  const alt = places.length ? `differs in bits ${places.join(", ")}` : "the same code";
  const drawn = strip(bits, differs, bits.length > 64 ? 32 : 16, alt);
  drawn.classList.add("of-bits");
  button.append(facts, drawn);
  const again = () => {
    searchById(id, answer.labels[i]);
    $("found").focus({ preventScroll: true });
    $("found").scrollIntoView({ block: "start" });
  };
  button.addEventListener("click", () => (state.info.pictures ? openLarge(i, button) : again()));
  if (!state.info.pictures) return make("li", {}, button);
  const similar = make("button", { type: "button", class: "similar", "aria-label": `Search with item ${id}` }, "Find similar");
  similar.addEventListener("click", again);
  return make("li", {}, button, similar);
}

function summarise(answer) {
  const shown = answer.ids.length;
  const more = answer.found > shown ? ` (the first of ${answer.found.toLocaleString()})` : "";
  const text = [make("strong", {}, `${shown.toLocaleString()} ${shown === 1 ? "hit" : "hits"}${more}`)];
  if (!shown) {
    $("status").replaceChildren(...text, ": nothing is that near. Widen the radius.");
    return;
  }
  const judged = answer.labels.map(verdict).filter(Boolean);
  if (judged.length) {
    text.push(`, ${judged.filter((v) => v === "right").length} with the right label`);
  } else {
    const [label, n] = commonest(answer.labels);
    if (label !== null) text.push(`, most often `, make("strong", {}, label), ` (${n})`);
  }
  const [near, far] = [answer.distances[0], answer.distances[shown - 1]];
  const distances = near === far ? `, at distance ${near}` : `, at distances ${near} to ${far}`;
  $("status").replaceChildren(...text, make("span", { class: "of-bits" }, distances));
}

function commonest(labels) {
  const counts = new Map();
  for (const label of labels) if (label !== null) counts.set(words(label), (counts.get(words(label)) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0] || [null, 0];
}

export function showGroups(groups) {
  $("query").hidden = true;
  $("hits").replaceChildren();
  $("legend").hidden = true;
  $("error").hidden = true;
  const copies = groups.reduce((n, group) => n + group.length - 1, 0);
  $("status").textContent = groups.length
    ? `${groups.length.toLocaleString()} ${groups.length === 1 ? "picture is" : "pictures are"} there more than once: ${copies.toLocaleString()} could go.`
    : "No picture is there twice.";
  const drawn = groups.slice(0, 200).map((group) => make("ul", { class: "group" }, ...group.map((id) => make("li", {},
    make("a", { href: fileAddress(id), target: "_blank", rel: "noopener", title: String(id) },
      picture(id, `item ${id}`), make("span", { class: "name" }, String(id).split("/").at(-1)))))));
  $("groups").replaceChildren(...drawn);
  $("groups").hidden = false;
}
