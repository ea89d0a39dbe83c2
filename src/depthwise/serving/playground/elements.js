// Elements, numbers and colours. What comes from users and models is set as text only, never as markup.

export function byId(id) { return document.getElementById(id); }

export function make(name, attributes, children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of [children].flat(3)) {
    if (child !== null && child !== undefined) element.append(child);
  }
  return element;
}

export function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  return seconds < 1 ? (1000 * seconds).toPrecision(3) + " ms" : seconds.toPrecision(3) + " s";
}

export function share(value) { return Number.isFinite(value) ? (100 * value).toFixed(0) + " %" : "–"; }

export function count(value) { return typeof value === "number" ? value.toLocaleString("en") : "–"; }

// The report's colours of depth: light is shallow, dark is deep
const DEPTHS = [[255, 243, 176], [255, 209, 102], [247, 157, 92], [217, 82, 107], [142, 47, 127], [59, 28, 113]];

function depthColour(depth, most) {
  const where = most > 1 ? Math.min(Math.max((depth - 1) / (most - 1), 0), 1) : 0;
  const place = where * (DEPTHS.length - 1), low = Math.min(Math.floor(place), DEPTHS.length - 2);
  return DEPTHS[low].map((value, i) => Math.round(value + (place - low) * (DEPTHS[low + 1][i] - value)));
}

function luminance(colour) {
  const [r, g, b] = colour.map((value) => {
    const x = value / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function paint(element, depth, most) {
  const colour = depthColour(depth, most);
  element.style.background = "rgb(" + colour.join(" ") + ")";
  element.style.color = luminance(colour) > 0.18 ? "#000000" : "#ffffff";
  return element;
}

export function legend(most) {
  const swatches = [];
  for (let depth = 1; depth <= most; depth++) {
    if (most > 24 && depth % Math.ceil(most / 12) && depth !== 1 && depth !== most) continue;
    swatches.push(paint(make("span", { class: "swatch" }, String(depth)), depth, most));
  }
  return ["Blocks that a token ran: ", ...swatches, make("span", { class: "swatch other" }, "unlike full depth")];
}
