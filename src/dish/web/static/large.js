// One hit, large: its name, what it is near to, the file itself; previous and next; out of the collection.
import { $, ask, fail, fileAddress, itemAddress, nearness, picture, state, words } from "./page.js";

let at = 0;
let opener = null;
let removing = false;

export function openLarge(i, from) {
  opener = from;
  draw(i);
  if (!$("large").open) $("large").showModal();
}

function draw(i) {
  const { answer } = state;
  at = i;
  const id = answer.ids[i];
  const label = words(answer.labels[i]);
  $("large-name").textContent = String(id);
  $("large-picture").replaceChildren(picture(id, `item ${id}`, 1600));
  const near = state.asked.id === id ? "the query itself" : `${nearness(answer.distances[i])} (${answer.distances[i]} of ${answer.n_bits} bits differ)`;
  $("large-facts").textContent = `${label ? `${label} · ` : ""}${near}`;
  $("large-before").disabled = i === 0;
  $("large-after").disabled = i === answer.ids.length - 1;
  $("large-open").href = fileAddress(id);
  $("large-remove").hidden = !state.info.writable;
  ready();
}

function ready() {
  removing = false;
  $("large-remove").textContent = "Remove";
}

const close = () => { $("large").close(); opener?.focus(); };

async function remove(done) {
  if (!removing) {
    removing = true;
    $("large-remove").textContent = "Really remove? The file stays";
    return;
  }
  const id = state.answer.ids[at];
  try {
    const said = await (await ask(itemAddress(id), { method: "DELETE" })).json();
    state.info.size = said.size;
    close();
    done(id);
  } catch (problem) {
    close();
    fail(problem);
  }
}

// With a token a link cannot ask by itself: the file is fetched and opened from memory.
async function openFile(event) {
  if (!state.token) return;
  event.preventDefault();
  const blob = await (await ask($("large-open").getAttribute("href"))).blob();
  open(URL.createObjectURL(blob));
}

export function setUpLarge(searchById, removed) {
  $("large-close").addEventListener("click", close);
  $("large-before").addEventListener("click", () => draw(at - 1));
  $("large-after").addEventListener("click", () => draw(at + 1));
  $("large-similar").addEventListener("click", () => {
    const { ids, labels } = state.answer;
    $("large").close();
    searchById(ids[at], labels[at]);
  });
  $("large-remove").addEventListener("click", () => remove(removed));
  $("large-open").addEventListener("click", (event) => openFile(event).catch(fail));
  $("large").addEventListener("click", (event) => { if (event.target === $("large")) close(); }); // beside it
  $("large").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" && !$("large-before").disabled) draw(at - 1);
    if (event.key === "ArrowRight" && !$("large-after").disabled) draw(at + 1);
  });
}
