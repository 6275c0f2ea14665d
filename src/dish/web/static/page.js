// Small things that all parts of the page use: elements, the state, the server.
export const $ = (id) => document.getElementById(id);

export const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

export const state = {
  info: null,
  asked: null, // what was searched with last: {id}, {file} or {code}, with label, name and picture
  answer: null, // the hits shown now
  amount: { k: 24, radius: 2 },
  turn: 0, // only the answer to the latest question is shown
  token: sessionStorage.getItem("dish-token"),
};

export async function ask(path, options = {}) {
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

const inPath = (key) => String(key).split("/").map(encodeURIComponent).join("/");
export const fileAddress = (key) => `/images/${inPath(key)}`;
export const itemAddress = (id) => `/items/${inPath(id)}`;
const thumbnailAddress = (key, side) => `/thumbnails/${inPath(key)}${side ? `?side=${side}` : ""}`;

// With a token an <img> cannot ask by itself: the picture is fetched and shown from memory.
export function picture(key, alt, side = 0) {
  const image = make("img", { alt, loading: side ? "eager" : "lazy", decoding: "async" });
  image.addEventListener("load", () => {
    image.classList.toggle("tiny", image.naturalWidth < 24);
    if (image.src.startsWith("blob:")) URL.revokeObjectURL(image.src);
  });
  image.addEventListener("error", () => { image.classList.add("missing"); image.alt = "no picture"; }, { once: true });
  const address = thumbnailAddress(key, side);
  if (state.token) {
    ask(address).then((answer) => answer.blob())
      .then((blob) => { image.src = URL.createObjectURL(blob); })
      .catch(() => image.classList.add("missing"));
  } else {
    image.src = address;
  }
  return image;
}

// A phone's photo has ten million pixels more than the model looks at: send a small copy, turned the right way up.
const LARGEST = 1024;
export async function shrunk(file) {
  if (!file.type.startsWith("image/") || file.size < 300_000) return file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return file; // a kind that this browser cannot read; perhaps the server can
  }
  const scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  const paper = canvas.getContext("2d");
  paper.imageSmoothingQuality = "high";
  paper.fillStyle = "white"; // transparent parts, as the server has it
  paper.fillRect(0, 0, canvas.width, canvas.height);
  paper.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const small = await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.92); });
  return small && small.size < file.size ? small : file;
}

export const words = (label) => (Array.isArray(label) ? label.join(", ") : label === null ? "" : String(label));

// How near, for people who do not count bits: beside the distances of items drawn at random.
export function nearness(distance) {
  if (distance === 0) return "same code";
  const { close_distance: close } = state.info;
  return distance <= 0.7 * close ? "very close" : distance <= close ? "close" : "far";
}

export function fail(problem) {
  $("error-text").textContent = problem.message;
  $("error").hidden = false;
  $("query").hidden = true;
  $("hits").replaceChildren();
  $("groups").hidden = true;
  $("status").textContent = "";
  $("legend").hidden = true;
}
