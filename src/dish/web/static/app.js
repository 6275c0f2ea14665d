// The page: pick something, search, draw the hits and the bits in which they differ.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

const narrow = matchMedia("(max-width: 46rem)");
const state = {
  info: null,
  asked: null, // what was searched with last: {id} or {file}, with label, name and picture
  amount: { k: 24, radius: 2 },
  turn: 0, // only the answer to the latest question is shown
  token: sessionStorage.getItem("dish-token"),
};

// --- the server ---

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  if (answer.status === 401) $("unlock").hidden = false;
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error || `The server answered ${answer.status}.`);
  }
  return answer;
}

const pictureAddress = (key) => `/images/${String(key).split("/").map(encodeURIComponent).join("/")}`;

// With a token an <img> cannot ask by itself: the picture is fetched and shown from memory.
function picture(key, alt) {
  const image = make("img", { alt, loading: "lazy", decoding: "async" });
  image.addEventListener("load", () => {
    image.classList.toggle("tiny", image.naturalWidth < 24);
    if (image.src.startsWith("blob:")) URL.revokeObjectURL(image.src);
  });
  image.addEventListener("error", () => { image.hidden = true; }, { once: true });
  if (state.token) {
    ask(pictureAddress(key)).then((answer) => answer.blob())
      .then((blob) => { image.src = URL.createObjectURL(blob); })
      .catch(() => { image.hidden = true; });
  } else {
    image.src = pictureAddress(key);
  }
  return image;
}

// --- bits ---

function bitsOf(hex, n) {
  const bits = [];
  for (let i = 0; i < n; i++) bits.push((parseInt(hex.substr(2 * (i >> 3), 2), 16) >> (7 - (i & 7))) & 1);
  return bits;
}

// One path for each kind of bit: a strip of many bits stays three elements.
function strip(bits, differs, perRow, label) {
  const height = perRow > 32 ? 1.5 : perRow > 16 ? 1.9 : 1;
  const pitch = height + 0.4;
  const paths = { zero: "", one: "", differs: "" };
  bits.forEach((bit, i) => {
    const kind = differs && differs[i] ? "differs" : bit ? "one" : "zero";
    paths[kind] += `M${i % perRow} ${pitch * Math.floor(i / perRow)}h.76v${height}h-.76z`;
  });
  const rows = Math.ceil(bits.length / perRow);
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const attributes = { viewBox: `0 0 ${perRow} ${pitch * rows - 0.4}`, class: "bits", role: "img", "aria-label": label };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  for (const [kind, d] of Object.entries(paths)) {
    const path = document.createElementNS(space, "path");
    path.setAttribute("class", kind);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

// --- searching ---

const mode = () => document.querySelector("input[name=mode]:checked").value;

function question() {
  const extent = { [mode()]: Number($("amount").value) };
  if (state.asked.file) {
    const form = new FormData();
    form.append("image", state.asked.file, "picture");
    for (const [name, value] of Object.entries(extent)) form.append(name, String(value));
    return { method: "POST", body: form };
  }
  const body = JSON.stringify({ id: state.asked.id, ...extent });
  return { method: "POST", body, headers: { "Content-Type": "application/json" } };
}

async function search() {
  if (!state.asked) return;
  const turn = ++state.turn;
  $("hits").classList.add("stale");
  const start = performance.now();
  try {
    const answer = await (await ask("/search", question())).json();
    if (turn !== state.turn) return;
    $("error").hidden = true;
    show(answer, performance.now() - start);
  } catch (problem) {
    if (turn === state.turn) fail(problem);
  } finally {
    if (turn === state.turn) $("hits").classList.remove("stale");
  }
}

function fail(problem) {
  $("error").textContent = problem.message;
  $("error").hidden = false;
  $("query").hidden = true;
  $("hits").replaceChildren();
  $("status").textContent = "";
  $("legend").hidden = true;
}

// --- showing ---

const ms = (value) => `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ms`;
const words = (label) => (Array.isArray(label) ? label.join(", ") : label === null ? "" : String(label));

function show(answer, trip) {
  const bits = bitsOf(answer.code, answer.n_bits);
  const { asked } = state;
  $("query").hidden = false;
  $("query-picture").replaceChildren(...(asked.picture ? [asked.picture()] : []));
  $("query-name").textContent = asked.name;
  $("query-bits").replaceChildren(strip(bits, null, Math.min(narrow.matches ? 32 : 64, bits.length), `code of ${bits.length} bits: ${answer.code}`));
  $("query-hex").textContent = `${answer.code} · ${bits.length} bits`;
  $("time-encode").textContent = ms(answer.time_ms.encode);
  $("time-search").textContent = ms(answer.time_ms.search);
  $("time-trip").textContent = ms(trip);
  $("hits").replaceChildren(...answer.ids.map((id, i) => hit(answer, i, bits)));
  $("legend").hidden = answer.ids.length === 0;
  summarise(answer);
}

function verdict(label) {
  const { label: wanted } = state.asked;
  if (wanted === null || wanted === undefined || label === null) return null;
  const share = Array.isArray(label) && Array.isArray(wanted) ? label.some((l) => wanted.includes(l)) : label === wanted;
  return share ? "right" : "wrong";
}

function hit(answer, i, query) {
  const id = answer.ids[i];
  const label = words(answer.labels[i]);
  const distance = answer.distances[i];
  const judged = verdict(answer.labels[i]);
  const bits = bitsOf(answer.codes[i], answer.n_bits);
  const differs = bits.map((bit, j) => bit !== query[j]);
  const places = differs.flatMap((d, j) => (d ? [j] : []));
  const mark = { right: "✓ ", wrong: "✗ " }[judged] || "";
  const itself = state.asked.id === id;
  const named = make("span", { class: "label" }, mark + (label || String(id)));
  const facts = make("span", { class: "facts" }, named, make("span", { class: "distance" }, itself ? "itself" : `${distance} ${distance === 1 ? "bit" : "bits"}`));
  const button = make("button", { type: "button", class: judged || "" });
  const said = judged ? `, ${judged === "right" ? "the same label" : "another label"}` : "";
  button.setAttribute("aria-label", `Item ${id}${label ? `, ${label}` : ""}${said}, distance ${distance}. Search with it`);
  if (state.info.pictures) button.append(picture(id, ""));
  else button.append(make("span", { class: "name" }, `item ${id}`));
  const alt = places.length ? `differs in bits ${places.join(", ")}` : "the same code";
  button.append(facts, strip(bits, differs, bits.length > 64 ? 32 : 16, alt));
  button.addEventListener("click", () => {
    searchById(id, answer.labels[i]);
    $("found").focus({ preventScroll: true });
    $("found").scrollIntoView({ block: "start" });
  });
  return make("li", {}, button);
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
  text.push(near === far ? `, at distance ${near}` : `, at distances ${near} to ${far}`);
  $("status").replaceChildren(...text);
}

function commonest(labels) {
  const counts = new Map();
  for (const label of labels) if (label !== null) counts.set(words(label), (counts.get(words(label)) || 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1])[0] || [null, 0];
}

// --- ways to ask ---

function searchById(id, label = null) {
  const shown = state.info.pictures ? () => picture(id, `item ${id}`) : null;
  state.asked = { id, label, name: `Item ${id}${label === null ? "" : ` · ${words(label)}`}`, picture: shown };
  press(null);
  return search();
}

function searchByFile(file, label = null, name = file.name || "pasted picture") {
  if (file.type && !file.type.startsWith("image/")) {
    state.turn++;
    fail(new Error(`${name} is not a picture.`));
    return undefined;
  }
  const shown = () => {
    const image = make("img", { alt: `the query: ${name}` });
    image.addEventListener("load", () => {
      image.classList.toggle("tiny", image.naturalWidth < 24);
      URL.revokeObjectURL(image.src);
    });
    image.addEventListener("error", () => { image.hidden = true; });
    image.src = URL.createObjectURL(file);
    return image;
  };
  state.asked = { file, label, name, picture: shown };
  press(null);
  return search();
}

async function searchBySample(sample, button) {
  if (sample.picture === null) {
    await searchById(sample.id, sample.label);
  } else {
    try {
      const file = await (await ask(pictureAddress(sample.picture))).blob();
      await searchByFile(file, sample.label, `Sample · ${words(sample.label)}`);
    } catch (problem) {
      fail(problem);
    }
  }
  press(button);
}

function press(button) {
  for (const each of $("samples").querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
}

function sampleButton(sample) {
  const label = words(sample.label);
  const button = make("button", { type: "button", "aria-pressed": "false" });
  const key = sample.picture ?? sample.id;
  const name = sample.picture === null ? `item ${sample.id}` : "sample";
  button.setAttribute("aria-label", `Search with ${name}${label ? `, ${label}` : ""}`);
  if (state.info.pictures) button.append(picture(key, ""));
  else button.append(make("strong", {}, label || "item"), make("br"), `id ${sample.id}`);
  button.addEventListener("click", () => searchBySample(sample, button));
  return button;
}

async function showSamples() {
  const samples = await (await ask("/samples?n=15")).json();
  $("samples").classList.toggle("words", !state.info.pictures);
  $("samples").replaceChildren(...samples.map((sample) => make("li", {}, sampleButton(sample))));
  return samples;
}

// --- the slider: k or radius ---

function setMode() {
  const which = mode();
  const slider = $("amount");
  slider.min = which === "k" ? 1 : 0;
  slider.max = which === "k" ? Math.min(60, state.info.max_k) : Math.min(32, state.info.n_bits);
  slider.value = state.amount[which];
  $("amount-label").textContent = which === "k" ? "Number of neighbours" : "Hamming distance at most";
  $("amount-shown").textContent = slider.value;
}

let waiting = 0;
function slid() {
  state.amount[mode()] = Number($("amount").value);
  $("amount-shown").textContent = $("amount").value;
  clearTimeout(waiting);
  waiting = setTimeout(search, 90);
}

// --- start ---

const idFrom = (text) => (state.info.ids === "integer" && /^-?\d+$/.test(text) ? Number(text) : text);

async function start() {
  state.info = await (await ask("/info")).json();
  const { info } = state;
  $("title").textContent = info.title;
  document.title = `${info.title}: search by binary codes`;
  $("about").textContent = `${info.size.toLocaleString()} items as ${info.n_bits}-bit codes by ${info.model}`;
  $("drop").hidden = info.takes === "vector";
  $("unlock").hidden = true;
  $("error").hidden = true;
  setMode();
  const samples = await showSamples();
  if (samples.length) await searchBySample(samples[0], $("samples").querySelector("button"));
}

const begin = () => start().catch(fail);

$("more").addEventListener("click", () => showSamples().catch(fail));
$("amount").addEventListener("input", slid);
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => { setMode(); search(); });
}
$("by-id").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("id").value.trim();
  if (text) searchById(idFrom(text));
  else $("id").focus();
});
$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = $("token").value;
  sessionStorage.setItem("dish-token", state.token);
  begin();
});
$("file").addEventListener("change", () => {
  if ($("file").files.length) searchByFile($("file").files[0]);
  $("file").value = ""; // the same file may be chosen again
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault(); // a picture dropped beside the box must not replace the page
    $("drop").classList.toggle("over", name === "dragover");
    const files = event.dataTransfer?.files;
    if (name === "drop" && files?.length && !$("drop").hidden) searchByFile(files[0]);
  });
}
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files || [])].find((f) => f.type.startsWith("image/"));
  if (file && !$("drop").hidden) searchByFile(file);
});
begin();
