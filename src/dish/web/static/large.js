// The large view of one hit: its name and distance, previous and next, opening its file, removing it.
import { $, closeness, fileAddress, itemAddress, labelText, picture, readJson, request, showError, state } from "./page.js";

let current = 0; // position among the hits
let opener = null; // gets the focus back
let confirming = false; // a second click removes the item

export function openLarge(i, from) {
  opener = from;
  draw(i);
  if (!$("large").open) $("large").showModal();
}

function draw(i) {
  const { result } = state;
  current = i;
  const id = result.ids[i];
  const label = labelText(result.labels[i]);
  $("large-name").textContent = String(id);
  $("large-picture").replaceChildren(picture(id, `item ${id}`, 1600));
  const close = state.query.id === id ? "the query itself" : `${closeness(result.distances[i])} (${result.distances[i]} of ${result.n_bits} bits differ)`;
  $("large-facts").textContent = `${label ? `${label} · ` : ""}${close}`;
  $("large-before").disabled = i === 0;
  $("large-after").disabled = i === result.ids.length - 1;
  $("large-open").href = fileAddress(id);
  $("large-remove").hidden = !state.info.writable;
  resetRemove();
}

function resetRemove() {
  confirming = false;
  $("large-remove").textContent = "Remove";
}

const close = () => { $("large").close(); opener?.focus(); };

async function remove(done) {
  if (!confirming) {
    confirming = true;
    $("large-remove").textContent = "Remove from the collection? The file stays";
    return;
  }
  const id = state.result.ids[current];
  try {
    const response = await readJson(await request(itemAddress(id), { method: "DELETE" }));
    state.info.size = response.size;
    close();
    done(id);
  } catch (error) {
    close();
    showError(error);
  }
}

// A link cannot send the token, so with a token the file is fetched and opened from memory.
async function openFile(event) {
  if (!state.token) return;
  event.preventDefault();
  const blob = await (await request($("large-open").getAttribute("href"))).blob();
  open(URL.createObjectURL(blob));
}

export function setUpLarge(searchById, removed) {
  $("large-close").addEventListener("click", close);
  $("large-before").addEventListener("click", () => draw(current - 1));
  $("large-after").addEventListener("click", () => draw(current + 1));
  $("large-similar").addEventListener("click", () => {
    const { ids, labels } = state.result;
    $("large").close();
    searchById(ids[current], labels[current]);
  });
  $("large-remove").addEventListener("click", () => remove(removed));
  $("large-open").addEventListener("click", (event) => openFile(event).catch(showError));
  $("large").addEventListener("click", (event) => { if (event.target === $("large")) close(); }); // outside the box
  $("large").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" && !$("large-before").disabled) draw(current - 1);
    if (event.key === "ArrowRight" && !$("large-after").disabled) draw(current + 1);
  });
}
