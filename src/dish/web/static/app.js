// The page: pick something, search, and keep the address such that it can be shared and gone back to.
import { show, showGroups } from "./hits.js";
import { setUpLarge } from "./large.js";
import { $, ask, fail, fileAddress, make, picture, shrunk, state, words } from "./page.js";

// --- searching ---

const SLOW = "Looking at the picture … The first upload takes some seconds: it loads the network.";
const mode = () => document.querySelector("input[name=mode]:checked").value;
const extent = () => ({ [mode()]: Number($("amount").value) });

async function question() {
  const { asked } = state;
  if (asked.file) {
    const form = new FormData();
    form.append("image", await shrunk(asked.file), "picture");
    for (const [name, value] of Object.entries(extent())) form.append(name, String(value));
    return { method: "POST", body: form };
  }
  const what = asked.id === undefined ? { code: asked.code } : { id: asked.id };
  const body = JSON.stringify({ ...what, ...extent() });
  return { method: "POST", body, headers: { "Content-Type": "application/json" } };
}

async function search({ remember = true } = {}) {
  if (!state.asked) return;
  const turn = ++state.turn;
  $("hits").classList.add("stale");
  const start = performance.now();
  const slow = setTimeout(() => { if (state.asked.file && turn === state.turn) $("status").textContent = SLOW; }, 700);
  try {
    const answer = await (await ask("/search", await question())).json();
    if (turn !== state.turn) return;
    $("error").hidden = true;
    show(answer, performance.now() - start, searchById);
    note(answer.code, remember);
  } catch (problem) {
    if (turn === state.turn) fail(problem);
  } finally {
    clearTimeout(slow);
    if (turn === state.turn) $("hits").classList.remove("stale");
  }
}

// --- the address: ?id=… or ?code=… of an upload, and how far ---

const uploads = new Map(); // code → what was uploaded, so that Back shows its picture again

function note(code, remember) {
  const { asked } = state;
  const where = new URLSearchParams(asked.id === undefined ? { code } : { id: asked.id });
  for (const [name, value] of Object.entries(extent())) where.set(name, value);
  if (asked.file) uploads.set(code, asked);
  const address = `${location.pathname}?${where}`;
  if (address === location.pathname + location.search) return;
  if (remember) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

function followAddress() {
  const where = new URLSearchParams(location.search);
  for (const name of ["k", "radius"]) {
    const value = Number(where.get(name));
    if (where.has(name) && Number.isInteger(value) && value >= 0) {
      state.amount[name] = value;
      document.querySelector(`input[name=mode][value=${name}]`).checked = true;
    }
  }
  setMode();
  const [id, code] = [where.get("id"), where.get("code")];
  if (id !== null) searchById(idFrom(id), null, { remember: false });
  else if (code !== null) searchByCode(code);
  return id !== null || code !== null;
}

// --- ways to ask ---

function searchById(id, label = null, how = {}) {
  const shown = state.info.pictures ? () => picture(id, `item ${id}`) : null;
  state.asked = { id, label, name: `Item ${id}${label === null ? "" : ` · ${words(label)}`}`, picture: shown };
  press(null);
  return search(how);
}

function searchByCode(code) {
  const { file, ...known } = uploads.get(code) || { name: "A shared code", label: null, picture: null };
  state.asked = { ...known, code };
  press(null);
  return search({ remember: false });
}

function searchByFile(file, label = null, name = file.name || "pasted picture", how = {}) {
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
  return search(how);
}

async function searchBySample(sample, button, how = {}) {
  if (sample.picture === null) {
    await searchById(sample.id, sample.label, how);
  } else {
    try {
      const file = await (await ask(fileAddress(sample.picture))).blob();
      await searchByFile(file, sample.label, `Sample · ${words(sample.label)}`, how);
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

// --- into the collection and out of it ---

async function addToCollection() {
  const { asked } = state;
  const form = new FormData();
  const name = (asked.file.name || "photo").slice(-180);
  const whole = asked.file.size <= state.info.max_body - 10_000;
  form.append("image", whole ? asked.file : await shrunk(asked.file), name);
  if (state.info.ids === "integer") form.append("id", String(Date.now()));
  $("add").disabled = true;
  try {
    const said = await (await ask("/items", { method: "POST", body: form })).json();
    state.info.size = said.size;
    describe();
    await searchById(said.id);
    $("status").prepend(`Added as ${said.id}. `);
  } catch (problem) {
    fail(problem);
  } finally {
    $("add").disabled = false;
  }
}

async function afterRemoval(id) {
  describe();
  if (state.asked.id === id) {
    state.asked = { code: state.answer.code, name: `Removed: ${id}`, label: null, picture: state.asked.picture };
  }
  await search({ remember: false });
  $("status").prepend(`Removed ${id}. `);
}

async function share() {
  try {
    await navigator.clipboard.writeText(location.href);
    $("share").textContent = "Copied";
  } catch {
    $("share").textContent = "Copy it from the address bar";
  }
}

// --- options ---

function setMode() {
  const which = mode();
  const slider = $("amount");
  slider.min = which === "k" ? 1 : 0;
  slider.max = which === "k" ? Math.min(60, state.info.max_k) : Math.min(Math.max(32, state.info.n_bits / 4), state.info.n_bits);
  slider.value = state.amount[which];
  $("amount-label").textContent = which === "k" ? "Number of neighbours" : "Hamming distance at most";
  $("amount-shown").textContent = slider.value;
}

let waiting = 0;
function slid() {
  state.amount[mode()] = Number($("amount").value);
  $("amount-shown").textContent = $("amount").value;
  clearTimeout(waiting);
  waiting = setTimeout(() => search({ remember: false }), 90);
}

function showBits(wanted) {
  $("with-bits").checked = wanted;
  document.body.classList.toggle("with-bits", wanted);
}

let suggesting = 0;
function suggest() {
  const text = $("id").value.trim();
  clearTimeout(suggesting);
  if (!text) return;
  suggesting = setTimeout(async () => {
    const ids = await (await ask(`/ids?n=8&like=${encodeURIComponent(text.slice(0, 100))}`)).json();
    $("names").replaceChildren(...ids.map((id) => make("option", { value: id })));
  }, 120);
}

const idFrom = (text) => (state.info.ids === "integer" && /^-?\d+$/.test(text) ? Number(text) : text);

// --- start ---

function describe() {
  const { info } = state;
  const things = info.pictures ? "pictures" : "items";
  $("title").textContent = info.title;
  document.title = `${info.title}: search by binary codes`;
  $("about").textContent = `${info.size.toLocaleString()} ${things} as ${info.n_bits}-bit codes by ${info.model}`;
}

async function start() {
  state.info = await (await ask("/info")).json();
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
  else $("status").textContent = info.writable ? "Nothing is here yet: choose a picture and add it." : "Nothing is here yet.";
}

const begin = () => start().catch(fail);

$("options").open = !matchMedia("(max-width: 46rem)").matches; // folded on a phone: the results come first
setUpLarge(searchById, afterRemoval);
$("more").addEventListener("click", () => showSamples().catch(fail));
$("amount").addEventListener("input", slid);
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
  $("status").textContent = "Comparing …";
  try {
    showGroups(await (await ask("/duplicates")).json());
  } catch (problem) {
    fail(problem);
  }
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
addEventListener("popstate", () => { $("large").close(); if (!followAddress()) begin(); });
begin();
