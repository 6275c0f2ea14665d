// Drawings of codes.
export function bitsOf(hex, n) {
  const bits = [];
  for (let i = 0; i < n; i++) bits.push((parseInt(hex.substr(2 * (i >> 3), 2), 16) >> (7 - (i & 7))) & 1);
  return bits;
}

// One path per kind of bit, so that a strip of many bits has only three elements.
export function strip(bits, differs, perRow, label) {
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
