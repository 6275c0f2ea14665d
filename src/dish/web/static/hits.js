// The result of a search: the query, the hits and a summary.
import { bitsOf, strip } from "./bits.js";
import { openLarge } from "./large.js";
import { $, closeness, fileAddress, labelText, make, picture, state } from "./page.js";

const narrow = matchMedia("(max-width: 46rem)");
const ms = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ms`;

export function show(result, roundTrip, searchById) {
  const bits = bitsOf(result.code, result.n_bits);
  const { query } = state;
  state.result = result;
  $("query").hidden = false;
  $("groups").hidden = true;
  $("query-picture").replaceChildren(...(query.picture ? [query.picture()] : []));
  $("query-name").textContent = query.name;
  $("add").hidden = !(state.info.writable && query.file);
  $("add").textContent = "Add to the collection";
  $("share").textContent = "Copy the link";
  const perRow = Math.min(narrow.matches ? 32 : 64, bits.length);
  $("query-bits").replaceChildren(strip(bits, null, perRow, `code of ${bits.length} bits: ${result.code}`));
  $("query-hex").textContent = `${result.code} · ${bits.length} bits`;
  $("time-encode").textContent = ms(result.time_ms.encode);
  $("time-search").textContent = ms(result.time_ms.search);
  $("time-trip").textContent = ms(roundTrip);
  $("hits").replaceChildren(...result.ids.map((id, i) => hit(result, i, bits, searchById)));
  $("legend").hidden = result.ids.length === 0;
  summarise(result);
}

function judge(label) {
  const { label: wanted } = state.query;
  if (wanted === null || wanted === undefined || label === null) return null;
  const same = Array.isArray(label) && Array.isArray(wanted) ? label.some((l) => wanted.includes(l)) : label === wanted;
  return same ? "right" : "wrong";
}

function hit(result, i, queryBits, searchById) {
  const id = result.ids[i];
  const label = labelText(result.labels[i]);
  const distance = result.distances[i];
  const verdict = judge(result.labels[i]);
  const bits = bitsOf(result.codes[i], result.n_bits);
  const differs = bits.map((bit, j) => bit !== queryBits[j]);
  const positions = differs.flatMap((d, j) => (d ? [j] : []));
  const mark = { right: "✓ ", wrong: "✗ " }[verdict] || "";
  const itself = state.query.id === id;
  const close = itself ? "itself" : closeness(distance);
  const text = mark + (label || String(id).split("/").at(-1));
  const facts = make("span", { class: "facts" },
    make("span", { class: "label", title: label ? `${label}: ${id}` : String(id) }, text),
    make("span", { class: "distance" },
      make("span", { class: "in-words" }, close),
      make("span", { class: "of-bits" }, itself ? "itself" : `${distance} ${distance === 1 ? "bit" : "bits"}`)));
  const button = make("button", { type: "button", class: verdict || "" });
  const comparison = verdict ? `, ${verdict === "right" ? "the same label" : "another label"}` : "";
  const action = state.info.pictures ? "Show it large" : "Search with it";
  button.setAttribute("aria-label", `Item ${id}${label ? `, ${label}` : ""}${comparison}, ${close}, distance ${distance}. ${action}`);
  if (state.info.pictures) button.append(picture(id, ""));
  else button.append(make("span", { class: "name" }, `item ${id}`));
  const alt = positions.length ? `differs in bits ${positions.join(", ")}` : "the same code";
  const drawn = strip(bits, differs, bits.length > 64 ? 32 : 16, alt);
  drawn.classList.add("of-bits");
  button.append(facts, drawn);
  const searchAgain = () => {
    searchById(id, result.labels[i]);
    $("found").focus({ preventScroll: true });
    $("found").scrollIntoView({ block: "start" });
  };
  button.addEventListener("click", () => (state.info.pictures ? openLarge(i, button) : searchAgain()));
  if (!state.info.pictures) return make("li", {}, button);
  const similar = make("button", { type: "button", class: "similar", "aria-label": `Search with item ${id}` }, "Find similar");
  similar.addEventListener("click", searchAgain);
  return make("li", {}, button, similar);
}

function summarise(result) {
  const shown = result.ids.length;
  const more = result.found > shown ? ` (the first of ${result.found.toLocaleString()})` : "";
  const text = [make("strong", {}, `${shown.toLocaleString()} ${shown === 1 ? "hit" : "hits"}${more}`)];
  if (!shown) {
    $("status").replaceChildren(...text, ": no item is within this radius. Increase it.");
    return;
  }
  const verdicts = result.labels.map(judge).filter(Boolean);
  if (verdicts.length) {
    text.push(`, ${verdicts.filter((v) => v === "right").length} with the right label`);
  } else {
    const [label, n] = mostCommon(result.labels);
    if (label !== null) text.push(`, most often `, make("strong", {}, label), ` (${n})`);
  }
  const [near, far] = [result.distances[0], result.distances[shown - 1]];
  const distances = near === far ? `, at distance ${near}` : `, at distances ${near} to ${far}`;
  $("status").replaceChildren(...text, make("span", { class: "of-bits" }, distances));
}

function mostCommon(labels) {
  const counts = new Map();
  for (const label of labels) if (label !== null) counts.set(labelText(label), (counts.get(labelText(label)) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0] || [null, 0];
}

export function showGroups(groups) {
  $("query").hidden = true;
  $("hits").replaceChildren();
  $("legend").hidden = true;
  $("error").hidden = true;
  const copies = groups.reduce((n, group) => n + group.length - 1, 0);
  $("status").textContent = groups.length
    ? `${groups.length.toLocaleString()} ${groups.length === 1 ? "picture has" : "pictures have"} duplicates: ${copies.toLocaleString()} ${copies === 1 ? "file" : "files"} could be deleted.`
    : "No duplicates found.";
  const drawn = groups.slice(0, 200).map((group) => make("ul", { class: "group" }, ...group.map((id) => make("li", {},
    make("a", { href: fileAddress(id), target: "_blank", rel: "noopener", title: String(id) },
      picture(id, `item ${id}`), make("span", { class: "name" }, String(id).split("/").at(-1)))))));
  $("groups").replaceChildren(...drawn);
  $("groups").hidden = false;
}
