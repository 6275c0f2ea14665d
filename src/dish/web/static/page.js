// Shared by all parts of the page: elements, state, requests to the server.
export const $ = (id) => document.getElementById(id);

export const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

export const state = {
  info: null,
  query: null, // the latest query: {id}, {file} or {code}, with label, name and picture
  result: null, // the response that is shown
  amount: { k: 24, radius: 2 },
  turn: 0, // number of the latest search; responses to earlier ones are ignored
  token: sessionStorage.getItem("dish-token"),
};

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("Cannot reach the server.");
  }
  if (response.status === 401) $("unlock").hidden = false;
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    throw new Error(body.error || `The server returned status ${response.status}.`);
  }
  return response;
}

// JavaScript rounds integers beyond 2^53: ids that large are kept as BigInt.
function exact(key, value, context) {
  if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) return value;
  if (!/^-?\d+$/.test(context?.source ?? "")) throw new Error("This browser cannot show ids as large as these.");
  return BigInt(context.source);
}
export const readJson = async (response) => JSON.parse(await response.text(), exact);
export const idText = (id) => (typeof id === "bigint" ? String(id) : JSON.stringify(id));

const inPath = (key) => String(key).split("/").map(encodeURIComponent).join("/");
export const fileAddress = (key) => `/images/${inPath(key)}`;
export const itemAddress = (id) => `/items?id=${encodeURIComponent(id)}`; // a path cannot contain the id ".."
const thumbnailAddress = (key, side) => `/thumbnails/${inPath(key)}${side ? `?side=${side}` : ""}`;

// An <img> cannot send the token, so with a token the picture is fetched and shown from memory.
export function picture(key, alt, side = 0) {
  const image = make("img", { alt, loading: side ? "eager" : "lazy", decoding: "async" });
  image.addEventListener("load", () => {
    image.classList.toggle("tiny", image.naturalWidth < 24);
    if (image.src.startsWith("blob:")) URL.revokeObjectURL(image.src);
  });
  image.addEventListener("error", () => { image.classList.add("missing"); image.alt = "no picture"; }, { once: true });
  const address = thumbnailAddress(key, side);
  if (state.token) {
    request(address).then((response) => response.blob())
      .then((blob) => { image.src = URL.createObjectURL(blob); })
      .catch(() => image.classList.add("missing"));
  } else {
    image.src = address;
  }
  return image;
}

// A phone's photo has far more pixels than the model uses: send a smaller copy, rotated upright.
const MAX_SIDE = 1024;
export async function shrink(file) {
  if (!file.type.startsWith("image/") || file.size < 300_000) return file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return file; // a format that this browser cannot read, but perhaps the server can
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = make("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // for transparent parts, as on the server
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  const small = await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.92); });
  return small && small.size < file.size ? small : file;
}

export const labelText = (label) => (Array.isArray(label) ? label.join(", ") : label === null ? "" : String(label));

// The distance in words, compared with the distances of random pairs of items.
export function closeness(distance) {
  if (distance === 0) return "same code";
  const { close_distance: close } = state.info;
  return distance <= 0.7 * close ? "very close" : distance <= close ? "close" : "far";
}

export function showError(error) {
  $("error-text").textContent = error.message;
  $("error").hidden = false;
  $("query").hidden = true;
  $("hits").replaceChildren();
  $("groups").hidden = true;
  $("status").textContent = "";
  $("legend").hidden = true;
}
