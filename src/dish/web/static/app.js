// The page: choose a query, search, and keep the query in the address, so that it can be shared and Back works.
import { show, showGroups } from "./hits.js";
import { setUpLarge } from "./large.js";
import { $, fileAddress, idText, labelText, make, picture, readJson, request, showError, shrink, state } from "./page.js";

// --- search ---

const SLOW = "Encoding the picture … The first upload takes a few seconds, because it loads the network.";
const mode = () => document.querySelector("input[name=mode]:checked").value;
const range = () => ({ [mode()]: Number($("amount").value) });

async function requestOptions() {
  const { query } = state;
  if (query.file) {
    const form = new FormData();
    form.append("image", await shrink(query.file), "picture");
    for (const [name, value] of Object.entries(range())) form.append(name, String(value));
    return { method: "POST", body: form };
  }
  const start = query.id === undefined ? `"code":${JSON.stringify(query.code)}` : `"id":${idText(query.id)}`;
  const body = `{${start},${JSON.stringify(range()).slice(1)}`;
  return { method: "POST", body, headers: { "Content-Type": "application/json" } };
}

async function search({ remember = true } = {}) {
  if (!state.query) return;
  const turn = ++state.turn;
  $("hits").classList.add("stale");
  const start = performance.now();
  const slow = setTimeout(() => { if (state.query.file && turn === state.turn) $("status").textContent = SLOW; }, 700);
  try {
    const result = await readJson(await request("/search", await requestOptions()));
    if (turn !== state.turn) return;
    $("error").hidden = true;
    show(result, performance.now() - start, searchById);
    updateAddress(result.code, remember);
  } catch (error) {
    if (turn === state.turn) showError(error);
  } finally {
    clearTimeout(slow);
    if (turn === state.turn) $("hits").classList.remove("stale");
  }
}

// --- the address: ?id=… or ?code=… of an upload, and k or radius ---

const uploads = new Map(); // code → uploaded query, so that Back shows its picture again

function updateAddress(code, remember) {
  const { query } = state;
  const parameters = new URLSearchParams(query.id === undefined ? { code } : { id: query.id });
  for (const [name, value] of Object.entries(range())) parameters.set(name, value);
  if (query.file) uploads.set(code, query);
  const address = `${location.pathname}?${parameters}`;
  if (address === location.pathname + location.search) return;
  if (remember) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

function followAddress() {
  const parameters = new URLSearchParams(location.search);
  for (const name of ["k", "radius"]) {
    const value = Number(parameters.get(name));
    if (parameters.has(name) && Number.isInteger(value) && value >= 0) {
      state.amount[name] = value;
      document.querySelector(`input[name=mode][value=${name}]`).checked = true;
    }
  }
  setMode();
  const [id, code] = [parameters.get("id"), parameters.get("code")];
  if (id !== null) searchById(idFrom(id), null, { remember: false });
  else if (code !== null) searchByCode(code);
  return id !== null || code !== null;
}

// --- queries ---

function searchById(id, label = null, how = {}) {
  const shown = state.info.pictures ? () => picture(id, `item ${id}`) : null;
  state.query = { id, label, name: `Item ${id}${label === null ? "" : ` · ${labelText(label)}`}`, picture: shown };
  press(null);
  return search(how);
}

function searchByCode(code) {
  const { file, ...known } = uploads.get(code) || { name: "A shared code", label: null, picture: null };
  state.query = { ...known, code };
  press(null);
  return search({ remember: false });
}

function searchByFile(file, label = null, name = file.name || "pasted picture", how = {}) {
  if (file.type && !file.type.startsWith("image/")) {
    state.turn++;
    showError(new Error(`${name} is not a picture.`));
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
  state.query = { file, label, name, picture: shown };
  press(null);
  return search(how);
}

async function searchBySample(sample, button, how = {}) {
  if (sample.picture === null) {
    await searchById(sample.id, sample.label, how);
  } else {
    try {
      const file = await (await request(fileAddress(sample.picture))).blob();
      await searchByFile(file, sample.label, `Sample · ${labelText(sample.label)}`, how);
    } catch (error) {
      showError(error);
    }
  }
  press(button);
}

function press(button) {
  for (const each of $("samples").querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === button));
}

function sampleButton(sample) {
  const label = labelText(sample.label);
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
  const samples = await readJson(await request("/samples?n=15"));
  $("samples").classList.toggle("words", !state.info.pictures);
  $("samples").replaceChildren(...samples.map((sample) => make("li", {}, sampleButton(sample))));
  return samples;
}

// --- adding and removing ---

async function addToCollection() {
  const { query } = state;
  const form = new FormData();
  const name = (query.file.name || "photo").slice(-180);
  const fits = query.file.size <= state.info.max_body - 10_000;
  form.append("image", fits ? query.file : await shrink(query.file), name);
  if (state.info.ids === "integer") form.append("id", String(Date.now()));
  $("add").disabled = true;
  try {
    const added = await readJson(await request("/items", { method: "POST", body: form }));
    state.info.size = added.size;
    describe();
    await searchById(added.id);
    $("status").prepend(`Added as ${added.id}. `);
  } catch (error) {
    showError(error);
  } finally {
    $("add").disabled = false;
  }
}

async function afterRemoval(id) {
  describe();
  if (state.query.id === id) {
    state.query = { code: state.result.code, name: `Removed: ${id}`, label: null, picture: state.query.picture };
  }
  await search({ remember: false });
  $("status").prepend(`Removed ${id}. `);
}

async function share() {
  try {
    await navigator.clipboard.writeText(location.href);
    $("share").textContent = "Copied";
  } catch {
    $("share").textContent = "Copy the link from the address bar";
  }
}

// --- options ---

function setMode() {
  const which = mode();
  const slider = $("amount");
  slider.min = which === "k" ? 1 : 0;
  slider.max = which === "k" ? Math.min(60, state.info.max_k) : Math.min(Math.max(32, state.info.n_bits / 4), state.info.n_bits);
  slider.value = state.amount[which];
  $("amount-label").textContent = which === "k" ? "Number of neighbours" : "Largest Hamming distance";
  $("amount-shown").textContent = slider.value;
}

let sliderTimer = 0;
function sliderMoved() {
  state.amount[mode()] = Number($("amount").value);
  $("amount-shown").textContent = $("amount").value;
  clearTimeout(sliderTimer);
  sliderTimer = setTimeout(() => search({ remember: false }), 90);
}

function showBits(wanted) {
  $("with-bits").checked = wanted;
  document.body.classList.toggle("with-bits", wanted);
}

let suggestTimer = 0;
function suggest() {
  const text = $("id").value.trim();
  clearTimeout(suggestTimer);
  if (!text) return;
  suggestTimer = setTimeout(async () => {
    const ids = await readJson(await request(`/ids?n=8&like=${encodeURIComponent(text.slice(0, 100))}`));
    $("names").replaceChildren(...ids.map((id) => make("option", { value: id })));
  }, 120);
}

const exactNumber = (text) => (Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text));
const idFrom = (text) => (state.info.ids === "integer" && /^(0|-?[1-9]\d{0,18})$/.test(text) ? exactNumber(text) : text);

// --- start ---

function describe() {
  const { info } = state;
  const things = info.pictures ? "pictures" : "items";
  $("title").textContent = info.title;
  document.title = `${info.title}: search by binary codes`;
  $("about").textContent = `${info.size.toLocaleString()} ${things} as ${info.n_bits}-bit codes by ${info.model}`;
}

async function start() {
  state.info = await readJson(await request("/info"));
  const { info } = state;
  describe();
  $("drop").hidden = info.takes === "vector";
  $("copies").hidden = !info.duplicates;
  $("unlock").hidden = true;
  $("error").hidden = true;
  const kept = localStorage.getItem("dish-bits");
  showBits(kept === null ? !info.pictures : kept === "yes");
  setMode();
  const samples = await showSamples();
  if (followAddress()) return;
  if (samples.length) await searchBySample(samples[0], $("samples").querySelector("button"), { remember: false });
  else $("status").textContent = info.writable ? "The collection is empty: choose a picture and add it." : "The collection is empty.";
}

const begin = () => start().catch(showError);

$("options").open = !matchMedia("(max-width: 46rem)").matches; // closed on a phone, where the results come first
setUpLarge(searchById, afterRemoval);
$("more").addEventListener("click", () => showSamples().catch(showError));
$("amount").addEventListener("input", sliderMoved);
$("with-bits").addEventListener("change", () => {
  showBits($("with-bits").checked);
  localStorage.setItem("dish-bits", $("with-bits").checked ? "yes" : "no");
});
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => { setMode(); search(); });
}
$("id").addEventListener("input", () => suggest());
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
$("recover").addEventListener("click", async () => {
  const samples = await showSamples().catch(() => []);
  if (samples.length) searchBySample(samples[0], $("samples").querySelector("button"));
});
$("add").addEventListener("click", addToCollection);
$("share").addEventListener("click", share);
$("copies").addEventListener("click", async () => {
  state.turn++;
  $("status").textContent = "Looking for duplicates …";
  try {
    showGroups(await readJson(await request("/duplicates")));
  } catch (error) {
    showError(error);
  }
});
$("file").addEventListener("change", () => {
  if ($("file").files.length) searchByFile($("file").files[0]);
  $("file").value = ""; // the same file may be chosen again
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault(); // a picture dropped next to the box must not replace the page
    $("drop").classList.toggle("over", name === "dragover");
    const files = event.dataTransfer?.files;
    if (name === "drop" && files?.length && !$("drop").hidden) searchByFile(files[0]);
  });
}
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files || [])].find((f) => f.type.startsWith("image/"));
  if (file && !$("drop").hidden) searchByFile(file);
});
addEventListener("popstate", () => { $("large").close(); if (!followAddress()) begin(); });
begin();
